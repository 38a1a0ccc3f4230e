//! Files and object stores behind one path or URI. [`uri`] understands what a user writes (a local path, `file://`,
//! `s3://`, `gs://`, `az://`, `http(s)://`, with globs or without), [`Location`] is a folder to read and write, [`http`]
//! gets what the web has, and [`store`] is the one place that knows credentials, time-outs and retries. Nothing here
//! knows of Arrow or torch.

pub mod error;
pub mod http;
pub mod location;
pub mod store;
pub mod uri;

mod checksum;
mod cores;
mod durable;
mod local;
mod mapped;
mod node;
mod redact;
mod runtime;
mod unfinished;
mod upload;
mod whole;

pub use checksum::Checksum;
pub use cores::{cores, processes, share_machine};
pub use error::{Error, Result};
pub use local::LocalFile;
pub use location::{Entry, Location};
pub use mapped::{Mapped, copy_past_caches};
pub use node::node;
pub use redact::{redacted, shown};
pub use runtime::{block_on, runtime};
pub use store::Limits;
pub use upload::Upload;
pub use uri::Address;
