//! Writes a dataset, unit by unit. Any number of writers may work on the same units, die or repeat: files lie
//! under names of their attempt, and the first commit of a unit is the one that counts. What an earlier run
//! with other settings computed and the present settings would compute again is copied.

mod dataset_writer;
mod reuse;
mod shard_file;
mod split_files;
mod tensor_columns;
mod unit_files;
mod unit_writer;

pub use dataset_writer::DatasetWriter;
pub use reuse::ReusableRows;
pub use unit_writer::{CommitOutcome, UnitWriter};
