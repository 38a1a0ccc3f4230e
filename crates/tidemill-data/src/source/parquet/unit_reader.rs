//! The batches of one unit of a Parquet file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::{Field, Schema, SchemaRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::ParquetError;

use crate::columns::names::SOURCE_ERROR;
use crate::error::Result;
use crate::source::batch_schema::identify;
use crate::source::pair_source::Batches;
use crate::source::parquet::errors::{gave_up, unreadable};
use crate::source::parquet::image_column::resolve_images;
use crate::source::parquet::row_groups::RowGroups;
use crate::source::units::{InputFile, InputUnit};

/// The batches of one unit, decoded on the caller's thread.
pub struct UnitReader {
    groups: RowGroups,
    /// What is left of the row group in hand.
    batches: Option<ParquetRecordBatchReader>,
    file: InputFile,
    /// Bytes of a batch with its images.
    room: u64,
    image: String,
    schema: SchemaRef,
    /// The next row to read.
    row: u64,
    end: u64,
    /// The latest batch, its images in place.
    pieces: Batches,
    /// The first row of the next piece.
    given: u64,
}

impl UnitReader {
    /// Reads a unit from its row groups. `room` is the size in bytes of a batch with its images.
    pub fn new(groups: RowGroups, unit: &InputUnit, room: u64, image: String, schema: SchemaRef) -> Self {
        let rows = unit.span.range();
        Self {
            groups,
            room,
            batches: None,
            file: unit.file.clone(),
            image,
            schema,
            row: rows.start,
            end: rows.end,
            pieces: Box::new(std::iter::empty()),
            given: rows.start,
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(piece) = self.pieces.next().transpose()? {
                let first_row = self.given;
                self.given += piece.num_rows() as u64;
                let piece = self.with_all_columns(piece)?;
                return identify(&piece, &self.file, first_row, &self.schema).map(Some);
            }
            if self.row >= self.end {
                return Ok(None);
            }
            let batch = catch_unwind(AssertUnwindSafe(|| self.read())).unwrap_or_else(|_| Err(gave_up()));
            let batch = batch.map_err(|e| unreadable(&self.file, e))?;
            self.row += batch.num_rows() as u64;
            self.pieces = resolve_images(tidemill_io::runtime()?, &self.file, batch, &self.image, self.room)?;
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

    /// Puts nulls for images that were not asked for.
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
            self.pieces = Box::new(std::iter::empty());
        }
        batch.transpose()
    }
}
