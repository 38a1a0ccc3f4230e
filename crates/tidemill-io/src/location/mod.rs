//! A folder, local or in a bucket, with blocking operations on the objects below it.
//!
//! All locations share one small tokio runtime. Do not call them from inside another runtime. What
//! has been written survives a loss of power.

mod folder;
mod listing;
mod read;
mod unfinished_files;
mod upload;
mod whole_object;
mod write;

pub use folder::Location;
pub use listing::Entry;
pub use upload::Upload;
