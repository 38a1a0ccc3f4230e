//! The tensor files of a dataset (shards): footers and row groups, reading, verification, the row
//! group cache and pooled buffers.

pub mod buffer_pool;
pub mod first_rows;
pub mod footer;
pub mod rounding_error;
pub mod row_group_cache;

pub(crate) mod reader;
pub(crate) mod row_group;
pub(crate) mod tensor;
