//! Connections to object stores: credentials, timeouts and retries, chosen here once for all
//! crates. There is one connection per bucket and process.

mod aws_profile;
mod builder;
mod connections;
mod credential_process;
mod credentials;
mod limits;
mod listing;
mod retry;
mod uri_root;

pub use connections::connect;
pub(crate) use connections::{Connection, get_or_open_connection, limits_for_root};
pub use limits::Limits;
pub(crate) use listing::{list_names, list_objects};
pub(crate) use uri_root::split_root;
