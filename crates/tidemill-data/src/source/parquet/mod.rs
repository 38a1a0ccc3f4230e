//! Parquet files with the encoded image in a column, or with its path or URI. Only the footer and
//! the column chunks that are needed are fetched.
//!
//! * `parquet_source`: the source; its units end at row-group boundaries
//! * `unit_reader`, `row_groups`: the batches of a unit, the next row group fetched ahead of need
//! * `footer`: what a file's metadata says
//! * `image_column`: images as bytes, as a struct {bytes, path}, as paths or URIs
//! * `errors`: what the `parquet` crate reports

mod errors;
mod footer;
mod image_column;
mod parquet_source;
mod row_groups;
mod unit_reader;

pub(super) use self::footer::Footer;
pub use self::parquet_source::ParquetSource;
