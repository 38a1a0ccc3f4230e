//! The batches of one unit of a Parquet file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::{Field, Schema, SchemaRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::ParquetError;

use crate::columns::names::SOURCE_ERROR;
use crate::error::Result;
use crate::source::batch_schema::add_identity_columns;
use crate::source::pair_source::Batches;
use crate::source::parquet::errors::{reader_panicked, to_read_error};
use crate::source::parquet::image_column::resolve_images;
use crate::source::parquet::row_groups::RowGroups;
use crate::source::units::{InputFile, InputUnit};

/// The batches of one unit, decoded on the caller's thread.
pub struct UnitReader {
    groups: RowGroups,
    /// The rest of the current row group.
    batches: Option<ParquetRecordBatchReader>,
    file: InputFile,
    /// Most bytes of a batch with its images.
    max_bytes: u64,
    image: String,
    schema: SchemaRef,
    /// Index of the next row to read.
    row: u64,
    end: u64,
    /// The last batch with its images, in chunks.
    chunks: Batches,
    /// Index of the first row of the next chunk.
    chunk_start: u64,
}

impl UnitReader {
    /// Reads a unit from its row groups. `max_bytes` is the size in bytes of a batch with its
    /// images.
    pub fn new(
        groups: RowGroups,
        unit: &InputUnit,
        max_bytes: u64,
        image: String,
        schema: SchemaRef,
    ) -> Self {
        let rows = unit.span.range();
        Self {
            groups,
            max_bytes,
            batches: None,
            file: unit.file.clone(),
            image,
            schema,
            row: rows.start,
            end: rows.end,
            chunks: Box::new(std::iter::empty()),
            chunk_start: rows.start,
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(chunk) = self.chunks.next().transpose()? {
                let first_row = self.chunk_start;
                self.chunk_start += chunk.num_rows() as u64;
                let chunk = self.with_all_columns(chunk)?;
                return add_identity_columns(&chunk, &self.file, first_row, &self.schema).map(Some);
            }
            if self.row >= self.end {
                return Ok(None);
            }
            let batch =
                catch_unwind(AssertUnwindSafe(|| self.read())).unwrap_or_else(|_| Err(reader_panicked()));
            let batch = batch.map_err(|e| to_read_error(&self.file, e))?;
            self.row += batch.num_rows() as u64;
            self.chunks =
                resolve_images(tidemill_io::runtime()?, &self.file, batch, &self.image, self.max_bytes)?;
        }
    }

    /// The next batch as it is in the file.
    fn read(&mut self) -> Result<RecordBatch, ParquetError> {
        loop {
            if let Some(batch) = self.batches.as_mut().and_then(Iterator::next) {
                return Ok(batch?);
            }
            let (row, end) = (self.row, self.end);
            self.batches = Some(self.groups.next_group()?.ok_or_else(|| {
                ParquetError::EOF(format!("it ends at row {row} where {end} were promised; did it change?"))
            })?);
        }
    }

    /// Adds nulls for images that were not requested.
    fn with_all_columns(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if batch.column_by_name(&self.image).is_some() {
            return Ok(batch);
        }
        let schema = batch.schema();
        let missing =
            |field: &&Arc<Field>| [self.image.as_str(), SOURCE_ERROR].contains(&field.name().as_str());
        let missing: Vec<_> = self.schema.fields().iter().filter(missing).cloned().collect();
        let nulls = missing.iter().map(|field| new_null_array(field.data_type(), batch.num_rows()));
        let columns = batch.columns().iter().cloned().chain(nulls).collect();
        let fields: Vec<_> = schema.fields().iter().cloned().chain(missing.clone()).collect();
        Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
    }
}

impl Iterator for UnitReader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch();
        if batch.is_err() {
            self.row = self.end;
            self.chunks = Box::new(std::iter::empty());
        }
        batch.transpose()
    }
}
