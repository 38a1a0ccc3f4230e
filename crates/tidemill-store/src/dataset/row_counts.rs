//! Counts of rows by what became of them: kept, rejected per filter, quarantined per kind of error.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Counts of rows. `kept`, `rejected` and `quarantined` add up to `read`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounts {
    /// Rows read.
    pub read: u64,
    /// Rows with tensors in the dataset.
    pub kept: u64,
    /// Rejected rows, by the name of the filter.
    pub rejected: BTreeMap<String, u64>,
    /// Quarantined rows, which cannot be read, by kind of error.
    pub quarantined: BTreeMap<String, u64>,
}

impl RowCounts {
    /// Counts the rows of a batch by its columns `status` (`kept`, `rejected` or `quarantined`) and
    /// `reason` (the name of the filter, or `kind: detail`).
    ///
    /// # Errors
    /// [`Error::Column`] if a column is missing or is not Utf8, or if a status is unknown.
    pub fn from_batch(batch: &RecordBatch) -> Result<Self> {
        let (status, reason) = (string_column(batch, "status")?, string_column(batch, "reason")?);
        let mut counts = Self { read: batch.num_rows() as u64, ..Self::default() };
        for row in 0..batch.num_rows() {
            let reason = if reason.is_valid(row) { reason.value(row) } else { "unknown" };
            match status.value(row) {
                "kept" => counts.kept += 1,
                "rejected" => *counts.rejected.entry(reason.to_owned()).or_default() += 1,
                "quarantined" => {
                    let kind = reason.split(':').next().unwrap_or(reason);
                    *counts.quarantined.entry(kind.to_owned()).or_default() += 1;
                }
                other => {
                    let problem = format!("`{other}` is not a status; use kept, rejected or quarantined");
                    return Err(Error::Column { column: "status".into(), problem });
                }
            }
        }
        Ok(counts)
    }

    /// Adds the counts of other rows.
    pub fn add(&mut self, other: &Self) {
        self.read += other.read;
        self.kept += other.kept;
        for (into, from) in
            [(&mut self.rejected, &other.rejected), (&mut self.quarantined, &other.quarantined)]
        {
            for (reason, rows) in from {
                *into.entry(reason.clone()).or_default() += rows;
            }
        }
    }

    /// Number of rejected rows.
    pub fn total_rejected(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Number of quarantined rows.
    pub fn total_quarantined(&self) -> u64 {
        self.quarantined.values().sum()
    }

    /// Whether kept, rejected and quarantined rows add up to the rows read.
    pub fn is_consistent(&self) -> bool {
        self.kept + self.total_rejected() + self.total_quarantined() == self.read
    }
}

/// A string column of a batch.
pub(crate) fn string_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray> {
    let fail = |problem: &str| Error::Column { column: name.to_owned(), problem: problem.to_owned() };
    let array = batch.column_by_name(name).ok_or_else(|| fail("is missing"))?;
    array.as_string_opt().ok_or_else(|| fail("is not Utf8"))
}
