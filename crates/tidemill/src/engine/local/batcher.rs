//! Cuts a unit's prepared rows into encode batches of a given number of kept rows. Cuts fall inside a unit and depend
//! on its rows alone, so a unit's bytes do not depend on who encodes it.

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use tidemill_data::prepared::text;
use tidemill_data::status::KEPT;

use crate::error::{Error, Result};

/// A batch also ends after this many times its size in rows of any kind, so that where a filter refuses nearly all of
/// them, what waits stays small.
const ROWS_PER_KEPT: usize = 4;

/// Collects small batches and gives out large ones.
#[derive(Debug)]
pub struct Cutter<T> {
    size: usize,
    waiting: Vec<RecordBatch>,
    held: Vec<T>,
    kept: usize,
    rows: usize,
}

/// Rows, and what is held for them until they are done.
#[derive(Debug)]
pub struct Cut<T> {
    pub batch: RecordBatch,
    pub held: Vec<T>,
}

/// The most rows in a batch of `size` kept rows.
pub fn most_rows(size: usize) -> usize {
    ROWS_PER_KEPT * size
}

impl<T> Cutter<T> {
    /// Batches of `size` kept rows, with the rows between them that are not kept.
    pub fn new(size: usize) -> Self {
        Self { size, waiting: Vec::new(), held: Vec::new(), kept: 0, rows: 0 }
    }

    /// Adds rows; gives the batches that are full now. What is held for the rows goes with the last of them.
    pub fn push(&mut self, batch: RecordBatch, held: T) -> Result<Vec<Cut<T>>> {
        let mut held = Some(held);
        let mut full = Vec::new();
        let mut start = 0;
        for (row, kept) in kept(&batch)?.into_iter().enumerate() {
            self.kept += usize::from(kept);
            self.rows += 1;
            if self.kept == self.size || self.rows == most_rows(self.size) {
                let end = row + 1;
                self.waiting.push(batch.slice(start, end - start));
                self.held.extend(held.take_if(|_| end == batch.num_rows()));
                full.extend(self.flush()?);
                start = end;
            }
        }
        if start < batch.num_rows() {
            self.waiting.push(batch.slice(start, batch.num_rows() - start));
        }
        self.held.extend(held);
        Ok(full)
    }

    /// The rows that are left, at the end of a unit.
    pub fn flush(&mut self) -> Result<Option<Cut<T>>> {
        (self.kept, self.rows) = (0, 0);
        let (waiting, held) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.held));
        let batch = match waiting.as_slice() {
            [] => return Ok(None),
            [one] => one.clone(),
            [first, ..] => concat_batches(&first.schema(), &waiting)?,
        };
        Ok(Some(Cut { batch, held }))
    }
}

/// Whether each row is kept.
fn kept(batch: &RecordBatch) -> Result<Vec<bool>> {
    let status = text(batch, "status")
        .ok_or_else(|| Error::Encode("the prepared batch has no Utf8 column `status`".into()))?;
    Ok((0..status.len()).map(|row| status.is_valid(row) && status.value(row) == KEPT).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, StringArray, UInt64Array};

    use super::*;

    /// Rows numbered from `first`; those that `kept` says are kept.
    fn batch(first: u64, kept: &[bool]) -> RecordBatch {
        let status = kept.iter().map(|k| if *k { "kept" } else { "rejected" });
        let status: ArrayRef = Arc::new(StringArray::from_iter_values(status));
        let rows: ArrayRef = Arc::new(UInt64Array::from_iter_values(first..first + kept.len() as u64));
        RecordBatch::try_from_iter([("row", rows), ("status", status)]).unwrap()
    }

    fn rows(batch: &RecordBatch) -> Vec<u64> {
        batch["row"].as_primitive::<arrow::datatypes::UInt64Type>().values().to_vec()
    }

    /// Each cut's rows and the number of the last piece that it holds, for rows that arrive in pieces.
    fn cuts(kept: &[bool], piece: usize) -> Vec<(Vec<u64>, Option<usize>)> {
        let mut cutter = Cutter::new(8);
        let mut cuts = Vec::new();
        for (number, rows) in kept.chunks(piece).enumerate() {
            cuts.extend(cutter.push(batch((number * piece) as u64, rows), number).unwrap());
        }
        cuts.extend(cutter.flush().unwrap());
        cuts.iter().map(|cut| (rows(&cut.batch), cut.held.last().copied())).collect()
    }

    /// The cuts depend on the rows, not on how they arrive.
    #[test]
    fn cuts_are_the_same_for_any_arrival() {
        let kept: Vec<bool> = (0..100).map(|i| i % 3 != 0 && i % 7 != 0).collect();
        let whole: Vec<Vec<u64>> = cuts(&kept, 100).into_iter().map(|(rows, _)| rows).collect();
        assert_eq!(whole.concat(), (0..100).collect::<Vec<u64>>());
        for cut in &whole[..whole.len() - 1] {
            assert_eq!(cut.iter().filter(|&&row| kept[row as usize]).count(), 8);
        }
        for piece in [1, 7, 8, 9, 64] {
            let pieces = cuts(&kept, piece);
            assert_eq!(
                pieces.iter().map(|(rows, _)| rows.clone()).collect::<Vec<_>>(),
                whole,
                "pieces of {piece}"
            );
            // A piece is held until its last row has gone.
            for (rows, held) in pieces {
                let complete = (rows[rows.len() - 1] as usize + 1).checked_div(piece).unwrap();
                let last = kept.chunks(piece).count() - 1;
                let ended = rows.last() == Some(&99);
                assert!(held.is_none_or(|held| held < complete || (ended && held == last)));
            }
        }
    }

    #[test]
    fn rows_that_are_refused_do_not_pile_up() {
        let kept: Vec<bool> = (0..100).map(|i| i > 90).collect();
        let lengths: Vec<usize> = cuts(&kept, 16).iter().map(|(rows, _)| rows.len()).collect();
        assert_eq!(lengths, [32, 32, 32, 4]);
    }

    #[test]
    fn an_empty_unit_gives_nothing() {
        assert!(Cutter::<()>::new(4).flush().unwrap().is_none());
    }
}
