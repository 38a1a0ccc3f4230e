//! Files and object stores behind one path or URI.
//!
//! [`uri`] parses what a user writes: a local path, `file://`, `s3://`, `gs://`, `az://` or
//! `http(s)://`, with or without globs. [`Location`] is a folder to read and write. [`http`]
//! downloads files of web servers. [`store`] is the only module that handles credentials, timeouts
//! and retries. This crate does not depend on Arrow or torch.

pub mod error;
pub mod http;
pub mod location;
pub mod store;
pub mod uri;

mod checksum;
mod local;
mod machine;
mod redact;
mod runtime;

pub use checksum::Checksum;
pub use error::{Error, Result};
pub use local::{LocalFile, MappedRange, copy_non_temporal};
pub use location::{Entry, Location, Upload};
pub use machine::{available_cores, hostname, processes_on_machine, set_processes_on_machine};
pub use redact::{is_http_url, redact_text, redact_uri};
pub use runtime::{block_on, runtime};
pub use store::Limits;
pub use uri::Address;
