//! Writes a dataset unit by unit. Any number of writers may work on the same units, die or repeat
//! work: each attempt writes files under its own name, and the first commit of a unit counts.
//! Tensors that an earlier run computed and the current settings would compute again are copied.

mod dataset_writer;
mod reuse;
mod shard_file;
mod split_files;
mod tensor_columns;
mod unit_files;
mod unit_writer;

pub use dataset_writer::DatasetWriter;
pub use reuse::ReusableRows;
pub use unit_writer::{CommitOutcome, UnitWriter, attempt_name};
