//! Errors of paths, URIs and stores. Every message says what was wrong, where, and what to do.

mod advice;
mod causes;
mod types;

pub(crate) use causes::NoHardLinks;
pub use causes::{causes, is_too_many_open_files};
pub use types::{Error, Result};
