//! `engine.max_bad_fraction`: a run stops when too large a share of its rows is unreadable.

use arrow::array::{Array, RecordBatch};
use tidemill_data::prepared::text;
use tidemill_data::status::QUARANTINED;
use tidemill_store::RowCounts;

use crate::error::{Error, Result};

/// Rows that must have been read before the share of unreadable rows is checked. Fewer rows are
/// checked only when they are all rows of the run.
pub const MIN_ROWS_TO_CHECK: u64 = 1000;

/// Rows and units that a run has finished so far.
#[derive(Debug, Default)]
pub struct RowTally {
    /// Units of this run.
    pub total_units: usize,
    /// Rows committed before this run.
    pub earlier_counts: RowCounts,
    /// Rows of the units that this run has completed.
    pub counts: RowCounts,
    /// The greatest allowed share of unreadable rows.
    pub max_bad_fraction: f64,
    /// Units whose rows are all written.
    pub completed_units: usize,
    /// Completed units that are also committed.
    pub committed_units: usize,
}

impl RowTally {
    /// Adds a completed unit and checks the share of unreadable rows. A small first unit cannot
    /// stop a run. The last unit is refused if all rows together are too bad, so that it stays
    /// uncommitted and the same command fails again in the same way.
    ///
    /// # Errors
    /// [`Error::TooManyBad`].
    pub fn add_unit(&mut self, unit: &RowCounts, last_bad: String) -> Result<()> {
        self.counts.add(unit);
        self.completed_units += 1;
        let mut all = self.earlier_counts.clone();
        all.add(&self.counts);
        match all.read >= MIN_ROWS_TO_CHECK || self.completed_units == self.total_units {
            true => check_bad_fraction(&all, self.max_bad_fraction, last_bad),
            false => Ok(()),
        }
    }
}

/// Checks that no more than this share of the rows is quarantined. `last` describes the last
/// quarantined row, for the message.
///
/// # Errors
/// [`Error::TooManyBad`].
pub fn check_bad_fraction(counts: &RowCounts, max_bad_fraction: f64, last: String) -> Result<()> {
    let (quarantined, read) = (counts.total_quarantined(), counts.read);
    match quarantined as f64 > max_bad_fraction * read as f64 {
        true => {
            let reasons = counts.quarantined.clone();
            Err(Error::TooManyBad { quarantined, read, allowed: max_bad_fraction, reasons, last })
        }
        false => Ok(()),
    }
}

/// Key and reason of the last quarantined row of a batch, if there is one.
pub(crate) fn describe_last_bad_row(batch: &RecordBatch) -> Option<String> {
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

    fn counts(kept: u64, bad: u64) -> RowCounts {
        let quarantined = [("format".to_string(), bad)].into();
        RowCounts { read: kept + bad, kept, quarantined, ..RowCounts::default() }
    }

    #[test]
    fn bad_fraction_is_checked_from_a_thousand_rows_or_at_the_last_unit() {
        for (case, earlier_counts, units, expected) in [
            ("a bad small first unit", counts(0, 0), vec![counts(1, 9), counts(500, 0)], vec![true, true]),
            ("few rows, many bad", counts(0, 0), vec![counts(5, 5), counts(5, 5)], vec![true, false]),
            ("a bad large unit", counts(0, 0), vec![counts(500, 500), counts(9, 0)], vec![false]),
            ("good earlier rows", counts(990, 0), vec![counts(5, 5), counts(1, 0)], vec![true, true]),
            ("bad earlier rows", counts(500, 490), vec![counts(10, 0), counts(1, 0)], vec![false]),
        ] {
            let (total_units, max_bad_fraction) = (units.len(), 0.1);
            let mut tally = RowTally { total_units, earlier_counts, max_bad_fraction, ..RowTally::default() };
            for (unit, expected) in units.iter().zip(expected) {
                assert_eq!(tally.add_unit(unit, String::new()).is_ok(), expected, "{case}");
            }
        }
    }
}
