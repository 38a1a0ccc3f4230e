//! Arrow IPC, as file (Feather) or stream, which `datasets.save_to_disk` writes. Only the record
//! batches that are needed are fetched.
//!
//! * `arrow_source`: the source; its units end between record batches
//! * `index`: where a file's record batches are
//! * `unit_batches`: the batches of a unit

mod arrow_source;
mod index;
mod unit_batches;

pub use self::arrow_source::ArrowSource;
pub use self::index::IpcIndex;
