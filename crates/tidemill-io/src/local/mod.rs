//! Files of this machine: durable writes, positioned reads, and ranges mapped into memory.

mod durable_write;
mod file;
mod mapped_file;
mod non_temporal_copy;

pub(crate) use durable_write::{DurableFile, sync_if_local};
pub use file::LocalFile;
pub use mapped_file::MappedRange;
pub use non_temporal_copy::copy_non_temporal;
