//! `engine.max_bad_fraction`: a run stops when too large a share of its rows is unreadable.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arrow::array::{Array, RecordBatch};
use serde::{Deserialize, Serialize};
use tidemill_data::prepared::text;
use tidemill_data::status::QUARANTINED;
use tidemill_store::RowCounts;

use crate::error::{Error, Result};

/// Rows that must have been read before the share of unreadable rows is checked. Fewer rows are
/// checked only when they are all rows of the run.
pub const MIN_ROWS_TO_CHECK: u64 = 1000;

/// Most reasons in the message.
const MAX_REASONS: usize = 5;

/// For each kind of error, the first row that was quarantined for it: its key and reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BadRows(BTreeMap<String, String>);

impl BadRows {
    /// Adds the quarantined rows of a batch with the columns `key`, `status` and `reason`.
    pub fn add_batch(&mut self, batch: &RecordBatch) {
        let (Some(key), Some(status), Some(reason)) =
            (text(batch, "key"), text(batch, "status"), text(batch, "reason"))
        else {
            return;
        };
        for row in (0..batch.num_rows()).filter(|&row| status.value(row) == QUARANTINED) {
            self.add(key.value(row), if reason.is_valid(row) { reason.value(row) } else { "unknown" });
        }
    }

    /// Adds a row.
    pub fn add(&mut self, key: &str, reason: &str) {
        let kind = reason.split(':').next().unwrap_or(reason);
        if !self.0.contains_key(kind) {
            self.0.insert(kind.to_owned(), format!("{key}: {reason}"));
        }
    }

    /// Adds the rows of others.
    pub fn merge(&mut self, others: Self) {
        for (kind, row) in others.0 {
            self.0.entry(kind).or_insert(row);
        }
    }

    /// A line for each of the commonest kinds of error, with its number of rows and one of them.
    fn list_commonest(&self, counts: &BTreeMap<String, u64>) -> String {
        let mut kinds: Vec<(&String, &u64)> = counts.iter().collect();
        kinds.sort_by_key(|(_, rows)| Reverse(**rows));
        let line = |(kind, rows): &(&String, &u64)| match self.0.get(*kind) {
            Some(row) => format!("\n  {rows} x {kind}, such as {row}"),
            // Its rows are those of an earlier run.
            None => format!("\n  {rows} x {kind}"),
        };
        kinds.iter().take(MAX_REASONS).map(line).collect()
    }
}

/// Rows and units that a run has finished so far.
#[derive(Debug, Default)]
pub struct RowTally {
    /// Units of this run.
    pub total_units: usize,
    /// Rows committed before this run.
    pub earlier_counts: RowCounts,
    /// Rows of the units that this run has completed.
    pub counts: RowCounts,
    /// Rows among them that are unreadable.
    pub bad_rows: BadRows,
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
    pub fn add_unit(&mut self, unit: &RowCounts, bad_rows: BadRows) -> Result<()> {
        self.counts.add(unit);
        self.bad_rows.merge(bad_rows);
        self.completed_units += 1;
        let mut all = self.earlier_counts.clone();
        all.add(&self.counts);
        match all.read >= MIN_ROWS_TO_CHECK || self.completed_units == self.total_units {
            true => check_bad_fraction(&all, self.max_bad_fraction, &self.bad_rows),
            false => Ok(()),
        }
    }
}

/// Checks that no more than this share of the rows is quarantined. `bad_rows` are for the message.
///
/// # Errors
/// [`Error::TooManyBad`].
pub fn check_bad_fraction(counts: &RowCounts, max_bad_fraction: f64, bad_rows: &BadRows) -> Result<()> {
    let (quarantined, read) = (counts.total_quarantined(), counts.read);
    match quarantined as f64 > max_bad_fraction * read as f64 {
        true => {
            let reasons = bad_rows.list_commonest(&counts.quarantined);
            Err(Error::TooManyBad { quarantined, read, allowed: max_bad_fraction, reasons })
        }
        false => Ok(()),
    }
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
                assert_eq!(tally.add_unit(unit, BadRows::default()).is_ok(), expected, "{case}");
            }
        }
    }

    #[test]
    fn commonest_reasons_come_with_a_row_each() {
        let mut bad_rows = BadRows::default();
        for (key, reason) in
            [("a", "fetch: gone"), ("b", "format: HTML"), ("c", "fetch: late"), ("d", "size: 1x1")]
        {
            bad_rows.add(key, reason);
        }
        let kinds = [("fetch", 2), ("format", 90), ("size", 1), ("json", 7), ("csv", 6), ("encoding", 5)];
        let quarantined = kinds.map(|(kind, rows)| (kind.to_owned(), rows)).into();
        let counts = RowCounts { read: 120, quarantined, ..RowCounts::default() };
        let error = check_bad_fraction(&counts, 0.1, &bad_rows).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().skip(1).map(str::trim).collect();
        let expected = [
            "90 x format, such as b: format: HTML",
            "7 x json",
            "6 x csv",
            "5 x encoding",
            "2 x fetch, such as a: fetch: gone",
        ];
        assert_eq!(lines[..5], expected, "{error}");
        assert!(error.starts_with("111 of 120 rows") && error.ends_with("or raise the limit"), "{error}");
    }
}
