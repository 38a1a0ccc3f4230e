//! The SQL expression of `filter.where`: parsed and checked once, then evaluated over record
//! batches.

pub(crate) mod parse;

mod evaluate;
