//! Where the rows went: kept, rejected per filter, quarantined per kind. The three add up to the rows read.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The status of a row that goes into the dataset.
pub const KEPT: &str = "kept";
/// The status of a row that a filter refused; its reason is the filter's name.
pub const REJECTED: &str = "rejected";
/// The status of an unreadable row; its reason is the error's text, `kind: detail`.
pub const QUARANTINED: &str = "quarantined";

/// Numbers of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Rows read.
    pub read: u64,
    /// Rows kept.
    pub kept: u64,
    /// Rows rejected, by the filter's name.
    pub rejected: BTreeMap<String, u64>,
    /// Rows quarantined, by kind.
    pub quarantined: BTreeMap<String, u64>,
}

impl Counts {
    /// Counts the rows of any batch with `Prepare`'s columns `status` and `reason`.
    ///
    /// # Errors
    /// If one of the columns is missing or no Utf8, or a status is unknown.
    pub fn of(batch: &RecordBatch) -> Result<Self> {
        let (status, reason) = (text(batch, "status")?, text(batch, "reason")?);
        let mut counts = Self { read: batch.num_rows() as u64, ..Self::default() };
        for row in 0..batch.num_rows() {
            let reason = if reason.is_valid(row) { reason.value(row) } else { "" };
            match status.value(row) {
                KEPT => counts.kept += 1,
                REJECTED => *counts.rejected.entry(reason.to_owned()).or_default() += 1,
                QUARANTINED => {
                    let kind = reason.split(':').next().unwrap_or(reason);
                    *counts.quarantined.entry(kind.to_owned()).or_default() += 1;
                }
                other => {
                    let file = format!("the prepared batch (status {other:?})");
                    return Err(Error::Read { file, problem: "its status is none of the known ones".into() });
                }
            }
        }
        Ok(counts)
    }

    /// Adds another batch's counts.
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

    /// Rows rejected, whatever the reason.
    pub fn total_rejected(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Rows quarantined, whatever the kind.
    pub fn total_quarantined(&self) -> u64 {
        self.quarantined.values().sum()
    }
}

fn text<'a>(batch: &'a RecordBatch, column: &str) -> Result<&'a StringArray> {
    let missing = || Error::MissingColumn {
        file: "the prepared batch".into(),
        column: column.into(),
        wanted_by: "counting".into(),
        available: batch.schema().fields().iter().map(|field| field.name().clone()).collect(),
    };
    batch.column_by_name(column).and_then(|array| array.as_string_opt()).ok_or_else(missing)
}
