//! The end of a lane: writes each unit's rows, counts them, and commits the unit unless the source turns out to be too
//! bad to go on with.

use arrow::array::{Array, RecordBatch};
use crossbeam_channel::Receiver;
use tidemill_data::InputUnit;
use tidemill_data::prepared::text;
use tidemill_data::status::QUARANTINED;
use tidemill_store::RowCounts;

use crate::engine::local::batcher::Cut;
use crate::engine::local::encode_pipeline::Step;
use crate::engine::local::engine::Shared;
use crate::engine::local::memory_budget::Permit;
use crate::engine::sink::Attempt;
use crate::error::{Error, Result};

/// Rows that must have been read before the share of unreadable ones says something about the source; fewer are judged
/// only when they are all.
pub const JUDGED_FROM: u64 = 1000;

pub(crate) fn write(shared: &Shared<'_>, from: &Receiver<Step<Cut<Permit>>>) -> Result<()> {
    let mut current: Option<Written> = None;
    for step in from {
        match step {
            Step::Begin(unit) => current = Some(Written::begin(shared, &unit)?),
            Step::Batch(Cut { batch, held }) => {
                let unit = current.as_mut().ok_or(Error::Thread("write"))?;
                shared.write.time(|| unit.add(&batch))?;
                shared.write.count(batch.num_rows());
                shared.progress.add(batch.num_rows() as u64);
                drop((batch, held));
            }
            Step::End => {
                let unit = current.take().ok_or(Error::Thread("write"))?;
                shared.write.time(|| unit.commit(shared))?;
            }
        }
    }
    Ok(())
}

/// Rows and units so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Units of this run.
    pub total: usize,
    /// Rows committed before this run.
    pub before: RowCounts,
    /// Rows of the units that are complete.
    pub counts: RowCounts,
    /// Greatest share of unreadable rows.
    pub allowed: f64,
    /// Units that are complete, and of these the committed ones.
    pub complete: usize,
    pub committed: usize,
}

impl Tally {
    /// Adds a complete unit; an error if now too many rows are unreadable. A small first unit cannot stop a run, but
    /// the last unit is not committed if all rows together are too bad, so that running again says so again.
    pub fn add(&mut self, unit: &RowCounts, last_bad: String) -> Result<()> {
        self.counts.add(unit);
        self.complete += 1;
        let mut all = self.before.clone();
        all.add(&self.counts);
        match all.read >= JUDGED_FROM || self.complete == self.total {
            true => judge(&all, self.allowed, last_bad),
            false => Ok(()),
        }
    }
}

/// Refuses rows of which too many are unreadable.
pub fn judge(counts: &RowCounts, allowed: f64, last: String) -> Result<()> {
    let (quarantined, read) = (counts.total_quarantined(), counts.read);
    match quarantined as f64 > allowed * read as f64 {
        true => {
            let reasons = counts.quarantined.clone();
            Err(Error::TooManyBad { quarantined, read, allowed, reasons, last })
        }
        false => Ok(()),
    }
}

/// A unit while it is written.
struct Written {
    attempt: Box<dyn Attempt>,
    counts: RowCounts,
    /// Key and reason of the last quarantined row.
    last_bad: String,
}

impl Written {
    fn begin(shared: &Shared<'_>, unit: &InputUnit) -> Result<Self> {
        Ok(Self { attempt: shared.sink.begin(unit)?, counts: RowCounts::default(), last_bad: String::new() })
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        self.counts.add(&RowCounts::from_batch(batch)?);
        if let Some(last) = last_bad(batch) {
            self.last_bad = last;
        }
        self.attempt.write(batch)
    }

    fn commit(self, shared: &Shared<'_>) -> Result<()> {
        shared.tally().add(&self.counts, self.last_bad)?;
        self.attempt.commit()?;
        shared.tally().committed += 1;
        Ok(())
    }
}

/// Key and reason of the last quarantined row.
pub(crate) fn last_bad(batch: &RecordBatch) -> Option<String> {
    let (key, status, reason) = (text(batch, "key")?, text(batch, "status")?, text(batch, "reason")?);
    let row = (0..batch.num_rows()).rfind(|&row| status.value(row) == QUARANTINED)?;
    Some(format!(
        "{}: {}",
        key.value(row),
        if reason.is_valid(row) { reason.value(row) } else { "no reason given" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kept` and `bad` rows.
    fn rows(kept: u64, bad: u64) -> RowCounts {
        let quarantined = [("format".to_string(), bad)].into();
        RowCounts { read: kept + bad, kept, quarantined, ..RowCounts::default() }
    }

    #[test]
    fn the_source_is_judged_by_a_thousand_rows_or_by_all() {
        for (what, before, units, expected) in [
            ("a bad small unit among others", rows(0, 0), vec![rows(1, 9), rows(500, 0)], vec![true, true]),
            ("all rows are few and bad", rows(0, 0), vec![rows(5, 5), rows(5, 5)], vec![true, false]),
            ("a bad large unit", rows(0, 0), vec![rows(500, 500), rows(9, 0)], vec![false]),
            ("rows of earlier runs count", rows(990, 0), vec![rows(5, 5), rows(1, 0)], vec![true, true]),
            ("and can be too bad", rows(500, 490), vec![rows(10, 0), rows(1, 0)], vec![false]),
        ] {
            let mut tally = Tally { total: units.len(), before, allowed: 0.1, ..Tally::default() };
            for (unit, expected) in units.iter().zip(expected) {
                assert_eq!(tally.add(unit, String::new()).is_ok(), expected, "{what}");
            }
        }
    }
}
