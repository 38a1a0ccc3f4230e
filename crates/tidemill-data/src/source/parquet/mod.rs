//! Parquet files with the encoded image in a column, or with its path or URI. Only the footer and
//! the column chunks that are needed are fetched.
//!
//! * `parquet_source`: the source; its units end at row-group boundaries
//! * `unit_batches`, `row_groups`: the batches of a unit, the next row group fetched ahead of need
//! * `footer`: what a file's metadata says
//! * `errors`: what the `parquet` crate reports

mod errors;
mod footer;
mod parquet_source;
mod row_groups;
mod unit_batches;

pub(super) use self::errors::{reader_panicked, to_read_error};
pub(super) use self::footer::Footer;
pub use self::parquet_source::ParquetSource;
