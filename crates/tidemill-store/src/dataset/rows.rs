//! Reads `rows.parquet` of all units: every row that was read from the source, with its caption and
//! what became of it. These files are small beside the tensors, so each is fetched whole.

use arrow::array::RecordBatch;
use arrow::array::RecordBatchReader;
use arrow::compute::concat_batches;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;

use crate::dataset::column_group::ColumnGroup;
use crate::dataset::commit::{Commit, FileEntry};
use crate::dataset::reader::Dataset;
use crate::error::{Error, Result};
use tidemill_io::Location;

/// An iterator over record batches. It ends after its first error.
pub struct RowBatches {
    dataset: Dataset,
    columns: Vec<String>,
    /// Index of the next unit.
    next: usize,
    current: Option<(String, ParquetRecordBatchReader)>,
}

impl Dataset {
    /// Reads all rows with what became of each, unit by unit in the order of the manifest. Only the
    /// named columns are read, or all columns if `columns` is empty.
    pub fn read_rows(&self, columns: &[&str]) -> RowBatches {
        RowBatches::new(self.clone(), columns)
    }
}

impl RowBatches {
    pub(crate) fn new(dataset: Dataset, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Self { dataset, columns, next: 0, current: None }
    }

    /// The unit that the last batch belongs to.
    pub fn unit(&self) -> Option<&Commit> {
        self.dataset.manifest().ok()?.commits.get(self.next.checked_sub(1)?)
    }

    /// The source file that the last batch comes from.
    pub fn source_file(&self) -> Option<&str> {
        Some(&self.unit()?.unit.file)
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some((path, reader)) = &mut self.current {
                if let Some(batch) = reader.next() {
                    let failure = |e| Error::Parquet { path: path.clone(), source: ParquetError::from(e) };
                    return batch.map(Some).map_err(failure);
                }
                self.current = None;
            }
            let Some(commit) = self.dataset.manifest()?.commits.get(self.next) else { return Ok(None) };
            self.next += 1;
            if let Some(file) = commit.file(ColumnGroup::Rows) {
                self.current = Some((self.dataset.location().uri_of(&file.path), self.open(file)?));
            }
        }
    }

    fn open(&self, file: &FileEntry) -> Result<ParquetRecordBatchReader> {
        open(self.dataset.location(), file, &self.columns)
    }
}

/// Reads all columns and rows of one unit.
pub(crate) fn read_rows_file(location: &Location, file: &FileEntry) -> Result<RecordBatch> {
    let failure = |e| Error::Parquet { path: location.uri_of(&file.path), source: ParquetError::from(e) };
    let reader = open(location, file, &[])?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>().map_err(failure)?;
    Ok(concat_batches(&schema, &batches)?)
}

fn open(location: &Location, file: &FileEntry, columns: &[String]) -> Result<ParquetRecordBatchReader> {
    let bytes = location.get(&file.path)?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).and_then(|builder| {
        if columns.is_empty() {
            return builder.build();
        }
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().map(String::as_str));
        builder.with_projection(mask).build()
    });
    reader.map_err(|source| Error::Parquet { path: location.uri_of(&file.path), source })
}

impl Iterator for RowBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch();
        if batch.is_err() {
            (self.current, self.next) = (None, usize::MAX);
        }
        batch.transpose()
    }
}
