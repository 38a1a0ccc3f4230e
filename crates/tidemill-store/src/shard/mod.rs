//! The tensor files of a dataset (shards): footers and row groups, reading, verification, the row
//! group cache and pooled buffers.

pub mod buffer;
pub mod cache;
pub mod first_rows;
pub mod footer;
pub mod rounding_error;

pub(crate) mod reader;
pub(crate) mod row_group;
pub(crate) mod tensor;
