//! The batches of one unit of a Parquet file as they are in the file.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::ParquetError;

use crate::error::Result;
use crate::source::parquet::errors::{reader_panicked, to_read_error};
use crate::source::parquet::row_groups::RowGroups;
use crate::source::units::{InputFile, InputUnit};

/// The batches of one unit, decoded on the caller's thread.
pub struct UnitBatches {
    groups: RowGroups,
    /// The rest of the current row group.
    batches: Option<ParquetRecordBatchReader>,
    file: InputFile,
    /// Index of the next row to read.
    row: u64,
    end: u64,
}

impl UnitBatches {
    /// Reads a unit from its row groups.
    pub fn new(groups: RowGroups, unit: &InputUnit) -> Self {
        let rows = unit.span.range();
        Self { groups, batches: None, file: unit.file.clone(), row: rows.start, end: rows.end }
    }

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
}

impl Iterator for UnitBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.row >= self.end {
            return None;
        }
        let batch = catch_unwind(AssertUnwindSafe(|| self.read())).unwrap_or_else(|_| Err(reader_panicked()));
        match &batch {
            Ok(batch) => self.row += batch.num_rows() as u64,
            Err(_) => self.row = self.end,
        }
        Some(batch.map_err(|e| to_read_error(&self.file, e)))
    }
}
