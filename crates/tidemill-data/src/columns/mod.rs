//! Columns of record batches: their names, the values of `status`, and typed views of them.

pub mod names;
pub mod prepared;
pub mod status;

pub(crate) mod typed;
