//! The tensor files of a dataset (shards): where their row groups are, and how their rows are read, cached and verified.

pub mod buffer;
pub mod cache;
pub mod first_rows;
pub mod footer;
pub mod rounding_error;

pub(crate) mod reader;
pub(crate) mod row_group;
pub(crate) mod tensor;
