//! What Parquet and Arrow IPC have in common: columns with types.
//!
//! * `columns`: the needed columns of a source, checked against each file
//! * `nested_column`: columns within structs and lists
//! * `image_column`: images as bytes, as a struct {bytes, path}, as paths or URIs
//! * `columnar_batches`: from a file's batches to those of the source

mod columnar_batches;
mod columns;
mod image_column;
mod nested_column;

pub use self::columnar_batches::ColumnarBatches;
pub use self::columns::NeededColumns;
