//! Where pairs come from. A [`Source`] knows its files, cuts them into units of work and reads a
//! unit as record batches. [`open`] gives the source that the run file describes.
//!
//! * `config`: the run file's section `[source]`
//! * `pair_source`, `units`: the trait, and its units of work
//! * `parquet`, `arrow_ipc`: Parquet and Arrow IPC; `columnar`: what both have in common
//! * `records`: JSON lines, CSV, COCO, image folders; rows without types of their own
//! * `webdataset`: samples in tars and zips
//! * `image_files`: captions in files beside images
//! * `field_path`: names of nested fields
//! * `fetch`: images that a row only names, from disk, a store or the web
//! * `listing`, `changed_files`: the files and their identities
//! * `batch_schema`, `needed_columns`, `sample_id`: the columns of the batches
//! * `discover`: what lies at a path, for a first run file
//! * `object_stream`, `object_seek`: an object's bytes as a blocking reader; `compression`: decompressed

pub mod discover;
pub mod records;
pub mod webdataset;

pub(crate) mod config;
pub(crate) mod pair_source;
pub(crate) mod sample_id;
pub(crate) mod units;

mod arrow_ipc;
mod batch_schema;
mod changed_files;
mod columnar;
mod compression;
mod fetch;
mod field_path;
mod image_files;
mod listing;
mod needed_columns;
mod object_seek;
mod object_stream;
mod open;
mod parquet;

pub use self::config::{Columns, CsvConfig, Format, KeySplit, SourceConfig};
pub use self::listing::list_files;
pub use self::open::open;
pub use self::pair_source::{Batches, Source};
pub use self::parquet::ParquetSource;
pub use self::records::{Record, RecordSource};
pub use self::sample_id::sample_id;
pub use self::units::{InputFile, InputUnit, Span};
pub use crate::columns::names::SOURCE_ERROR;
