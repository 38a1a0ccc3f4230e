//! Cuts a unit's prepared rows into encode batches of a given number of kept rows. Cuts fall inside a unit and depend
//! on its rows alone, so a unit's bytes do not depend on who encodes it.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use tidemill_data::counts::KEPT;

use crate::error::{Error, Result};

/// Collects small batches and gives out large ones.
#[derive(Debug)]
pub struct Cutter {
    size: usize,
    waiting: Vec<RecordBatch>,
    kept: usize,
}

impl Cutter {
    /// Batches of `size` kept rows, with the rows between them that are not kept.
    pub fn new(size: usize) -> Self {
        Self { size, waiting: Vec::new(), kept: 0 }
    }

    /// Adds rows; gives the batches that are full now.
    pub fn push(&mut self, batch: RecordBatch) -> Result<Vec<RecordBatch>> {
        let mut full = Vec::new();
        let mut start = 0;
        for row in kept_rows(&batch)? {
            self.kept += 1;
            if self.kept == self.size {
                self.waiting.push(batch.slice(start, row + 1 - start));
                start = row + 1;
                full.extend(self.flush()?);
            }
        }
        if start < batch.num_rows() {
            self.waiting.push(batch.slice(start, batch.num_rows() - start));
        }
        Ok(full)
    }

    /// The rows that are left, at the end of a unit.
    pub fn flush(&mut self) -> Result<Option<RecordBatch>> {
        self.kept = 0;
        let waiting = std::mem::take(&mut self.waiting);
        match waiting.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [first, ..] => Ok(Some(concat_batches(&first.schema(), &waiting)?)),
        }
    }
}

fn kept_rows(batch: &RecordBatch) -> Result<Vec<usize>> {
    let status = batch.column_by_name("status").and_then(|column| column.as_string_opt::<i32>());
    let status =
        status.ok_or_else(|| Error::Encode("the prepared batch has no Utf8 column `status`".into()))?;
    Ok((0..status.len()).filter(|&row| status.is_valid(row) && status.value(row) == KEPT).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray, UInt64Array};

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

    /// The cuts depend on the rows, not on how they arrive.
    #[test]
    fn cuts_are_the_same_for_any_arrival() {
        let kept: Vec<bool> = (0..100).map(|i| i % 3 != 0 && i % 7 != 0).collect();
        let cuts = |piece: usize| {
            let mut cutter = Cutter::new(8);
            let mut cuts = Vec::new();
            for (i, piece) in kept.chunks(piece).enumerate() {
                let first = cuts.iter().map(|c: &Vec<u64>| c.len() as u64).sum::<u64>();
                let first = first + cutter.waiting.iter().map(|b| b.num_rows() as u64).sum::<u64>();
                cuts.extend(cutter.push(batch(first, piece)).unwrap().iter().map(rows));
                assert!(i < 100);
            }
            cuts.extend(cutter.flush().unwrap().iter().map(rows));
            cuts
        };
        let whole = cuts(100);
        assert_eq!(whole.concat(), (0..100).collect::<Vec<u64>>());
        for cut in &whole[..whole.len() - 1] {
            assert_eq!(cut.iter().filter(|&&row| kept[row as usize]).count(), 8);
        }
        for piece in [1, 7, 8, 9, 64] {
            assert_eq!(cuts(piece), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn an_empty_unit_gives_nothing() {
        assert!(Cutter::new(4).flush().unwrap().is_none());
    }
}
