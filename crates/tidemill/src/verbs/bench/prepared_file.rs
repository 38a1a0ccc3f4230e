//! Prepared rows as a Parquet file: uncompressed pixels, one row group for each batch.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::error::{Error, Result};

/// A Parquet file that is being written.
pub struct PreparedFile<W: Write + Send> {
    writer: ArrowWriter<W>,
    path: String,
}

impl PreparedFile<File> {
    /// Creates the file at `path`. Overwrites an existing file.
    pub fn create(path: &Path, schema: SchemaRef) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|source| Error::Write { path: name.clone(), source })?;
        Self::new(file, name, schema)
    }
}

impl<W: Write + Send> PreparedFile<W> {
    /// Starts a file in `target`. Messages call it `path`.
    pub fn new(target: W, path: String, schema: SchemaRef) -> Result<Self> {
        // Pixels do not compress well and hardly repeat, so compression and dictionaries only cost
        // time.
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        match ArrowWriter::try_new(target, schema, Some(properties)) {
            Ok(writer) => Ok(Self { writer, path }),
            Err(error) => Err(write_error(&path, error)),
        }
    }

    /// Appends a batch as a row group.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let result = self.writer.write(batch).and_then(|()| self.writer.flush());
        result.map_err(|error| write_error(&self.path, error))
    }

    /// Writes the footer.
    pub fn finish(self) -> Result<()> {
        let Self { writer, path } = self;
        writer.close().map(|_| ()).map_err(|error| write_error(&path, error))
    }
}

fn write_error(path: &str, error: ParquetError) -> Error {
    Error::Write { path: path.to_owned(), source: std::io::Error::other(error) }
}
