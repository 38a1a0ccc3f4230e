//! Prepared rows as a Parquet file: pixels as they are, one row group for each batch.

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

/// A file in the making.
pub struct PreparedFile<W: Write + Send> {
    writer: ArrowWriter<W>,
    path: String,
}

impl PreparedFile<File> {
    /// Starts the file at `path`, over one that is there.
    pub fn create(path: &Path, schema: SchemaRef) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|source| Error::Write { path: name.clone(), source })?;
        Self::new(file, name, schema)
    }
}

impl<W: Write + Send> PreparedFile<W> {
    /// Starts a file in `target`, called `path` in messages.
    pub fn new(target: W, path: String, schema: SchemaRef) -> Result<Self> {
        // Pixels neither compress nor repeat.
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        match ArrowWriter::try_new(target, schema, Some(properties)) {
            Ok(writer) => Ok(Self { writer, path }),
            Err(error) => Err(failure(&path, error)),
        }
    }

    /// Appends a batch as a row group.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let written = self.writer.write(batch).and_then(|()| self.writer.flush());
        written.map_err(|error| failure(&self.path, error))
    }

    /// Ends the file.
    pub fn finish(self) -> Result<()> {
        let Self { writer, path } = self;
        writer.close().map(|_| ()).map_err(|error| failure(&path, error))
    }
}

fn failure(path: &str, error: ParquetError) -> Error {
    Error::Write { path: path.to_owned(), source: std::io::Error::other(error) }
}
