//! Groups a unit's prepared rows into encode batches of a given number of kept rows. The boundaries
//! depend on the unit's rows alone, so a unit's bytes do not depend on which encoder encodes it.

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use tidemill_data::prepared::text;
use tidemill_data::status::KEPT;

use crate::error::{Error, Result};

/// A batch ends at the latest after this many times its size in rows of any status. If a filter
/// rejects nearly all rows, few rows wait.
const MAX_ROWS_PER_KEPT: usize = 4;

/// Collects small batches and returns large ones.
#[derive(Debug)]
pub(crate) struct Batcher<T> {
    batch_size: usize,
    waiting: Vec<RecordBatch>,
    held: Vec<T>,
    kept: usize,
    rows: usize,
}

/// Rows for one call of the encoder, and what is held for them until they are written.
#[derive(Debug)]
pub(crate) struct EncodeBatch<T> {
    pub rows: RecordBatch,
    pub held: Vec<T>,
}

/// The most rows of any status in a batch of `batch_size` kept rows.
pub(crate) fn max_rows(batch_size: usize) -> usize {
    MAX_ROWS_PER_KEPT * batch_size
}

impl<T> Batcher<T> {
    /// Makes batches of `batch_size` kept rows, with the rows between them that are not kept.
    pub fn new(batch_size: usize) -> Self {
        Self { batch_size, waiting: Vec::new(), held: Vec::new(), kept: 0, rows: 0 }
    }

    /// Adds rows and returns the batches that are full now. The batch with the last of the rows
    /// takes what is held for them.
    ///
    /// # Errors
    /// If the rows have no column `status`.
    pub fn push(&mut self, rows: RecordBatch, held: T) -> Result<Vec<EncodeBatch<T>>> {
        let mut held = Some(held);
        let mut full = Vec::new();
        let mut start = 0;
        for (row, is_kept) in kept_rows(&rows)?.into_iter().enumerate() {
            self.kept += usize::from(is_kept);
            self.rows += 1;
            if self.kept == self.batch_size || self.rows == max_rows(self.batch_size) {
                let end = row + 1;
                self.waiting.push(rows.slice(start, end - start));
                self.held.extend(held.take_if(|_| end == rows.num_rows()));
                full.extend(self.flush()?);
                start = end;
            }
        }
        if start < rows.num_rows() {
            self.waiting.push(rows.slice(start, rows.num_rows() - start));
        }
        self.held.extend(held);
        Ok(full)
    }

    /// Returns the remaining rows, at the end of a unit.
    ///
    /// # Errors
    /// If batches of different schemas were pushed.
    pub fn flush(&mut self) -> Result<Option<EncodeBatch<T>>> {
        (self.kept, self.rows) = (0, 0);
        let (waiting, held) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.held));
        let rows = match waiting.as_slice() {
            [] => return Ok(None),
            [one] => one.clone(),
            [first, ..] => concat_batches(&first.schema(), &waiting)?,
        };
        Ok(Some(EncodeBatch { rows, held }))
    }
}

/// Whether each row is kept.
fn kept_rows(batch: &RecordBatch) -> Result<Vec<bool>> {
    let status = text(batch, "status")
        .ok_or_else(|| Error::Encode("the prepared batch has no Utf8 column `status`".into()))?;
    Ok((0..status.len()).map(|row| status.is_valid(row) && status.value(row) == KEPT).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, StringArray, UInt64Array};

    use super::*;

    /// Rows with consecutive numbers from `first`, kept or rejected as given.
    fn rows(first: u64, kept: &[bool]) -> RecordBatch {
        let status = kept.iter().map(|k| if *k { "kept" } else { "rejected" });
        let status: ArrayRef = Arc::new(StringArray::from_iter_values(status));
        let rows: ArrayRef = Arc::new(UInt64Array::from_iter_values(first..first + kept.len() as u64));
        RecordBatch::try_from_iter([("row", rows), ("status", status)]).unwrap()
    }

    fn row_numbers(batch: &RecordBatch) -> Vec<u64> {
        batch["row"].as_primitive::<arrow::datatypes::UInt64Type>().values().to_vec()
    }

    /// Each batch's rows, and the number of the last push that it holds, for rows that are pushed
    /// in groups of `push_rows`.
    fn make_batches(kept: &[bool], push_rows: usize) -> Vec<(Vec<u64>, Option<usize>)> {
        let mut batcher = Batcher::new(8);
        let mut batches = Vec::new();
        for (push, kept) in kept.chunks(push_rows).enumerate() {
            batches.extend(batcher.push(rows((push * push_rows) as u64, kept), push).unwrap());
        }
        batches.extend(batcher.flush().unwrap());
        batches.iter().map(|batch| (row_numbers(&batch.rows), batch.held.last().copied())).collect()
    }

    #[test]
    fn batch_boundaries_do_not_depend_on_how_rows_arrive() {
        let kept: Vec<bool> = (0..100).map(|i| i % 3 != 0 && i % 7 != 0).collect();
        let expected: Vec<Vec<u64>> = make_batches(&kept, 100).into_iter().map(|(rows, _)| rows).collect();
        assert_eq!(expected.concat(), (0..100).collect::<Vec<u64>>());
        for batch in &expected[..expected.len() - 1] {
            assert_eq!(batch.iter().filter(|&&row| kept[row as usize]).count(), 8);
        }
        for push_rows in [1, 7, 8, 9, 64] {
            let batches = make_batches(&kept, push_rows);
            assert_eq!(
                batches.iter().map(|(rows, _)| rows.clone()).collect::<Vec<_>>(),
                expected,
                "{push_rows} rows per push"
            );
            // A push is held until its last row has left.
            for (rows, held) in batches {
                let complete = (rows[rows.len() - 1] as usize + 1).checked_div(push_rows).unwrap();
                let last = kept.chunks(push_rows).count() - 1;
                let is_end = rows.last() == Some(&99);
                assert!(held.is_none_or(|held| held < complete || (is_end && held == last)));
            }
        }
    }

    #[test]
    fn rejected_rows_do_not_pile_up() {
        let kept: Vec<bool> = (0..100).map(|i| i > 90).collect();
        let lengths: Vec<usize> = make_batches(&kept, 16).iter().map(|(rows, _)| rows.len()).collect();
        assert_eq!(lengths, [32, 32, 32, 4]);
    }

    #[test]
    fn empty_unit_makes_no_batch() {
        assert!(Batcher::<()>::new(4).flush().unwrap().is_none());
    }
}
