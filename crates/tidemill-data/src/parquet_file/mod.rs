//! Parquet files in a store, fetched by range and checked before their content is trusted.

pub(crate) mod object_reader;

mod size_claims;
