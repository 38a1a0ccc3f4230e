//! Row accounting of online training: what became of the rows that a process has prepared, and how
//! long the stages worked.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, RecordBatch};
use serde::Serialize;
use tidemill_data::InputUnit;
use tidemill_data::prepared::text;
use tidemill_data::status::QUARANTINED;
use tidemill_store::RowCounts;

use crate::engine::quarantine_limit::{MIN_ROWS_TO_CHECK, check_bad_fraction};
use crate::error::{Error, Result};
use crate::online::quarantine_file::QuarantineFile;

/// What became of all rows since the start of this process.
#[derive(Debug)]
pub struct RowAccounting {
    rows: Mutex<ReadRows>,
    quarantine: Mutex<QuarantineFile>,
    stages: Mutex<Vec<StageWork>>,
    /// The greatest allowed share of unreadable rows.
    max_bad_fraction: f64,
    /// Number of the source's units.
    source_units: usize,
}

/// What a stage has done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageWork {
    /// Name of the stage.
    pub stage: &'static str,
    /// Rows that it worked on.
    pub rows: u64,
    /// Seconds that all its threads together spent working.
    pub busy_seconds: f64,
}

#[derive(Debug, Default)]
struct ReadRows {
    counts: RowCounts,
    /// The units of these rows. Not kept any more once there are enough rows to check.
    units: HashSet<(String, u64)>,
}

impl RowAccounting {
    /// Starts to count, and opens the quarantine file in the run's output folder. `source_units`
    /// is the number of the source's units.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(output: &str, max_bad_fraction: f64, source_units: usize) -> Result<Self> {
        let quarantine = Mutex::new(QuarantineFile::open(output)?);
        let (rows, stages) = Default::default();
        Ok(Self { rows, quarantine, stages, max_bad_fraction, source_units })
    }

    /// What became of all rows so far.
    pub fn counts(&self) -> RowCounts {
        lock(&self.rows).counts.clone()
    }

    /// What each stage has done. The stages of the engine are added at the end of each epoch, and
    /// when the trainer takes no more batches.
    pub fn stage_work(&self) -> Vec<StageWork> {
        lock(&self.stages).clone()
    }

    /// Adds what a stage has done.
    pub fn add_work(&self, stage: &'static str, rows: u64, busy_seconds: f64) {
        let mut stages = lock(&self.stages);
        match stages.iter_mut().find(|work| work.stage == stage) {
            Some(work) => {
                work.rows += rows;
                work.busy_seconds += busy_seconds;
            }
            None => stages.push(StageWork { stage, rows, busy_seconds }),
        }
    }

    /// Counts rows of a unit, and writes those that are quarantined to the file.
    ///
    /// # Errors
    /// If a column is missing, or the file cannot be written.
    pub fn add_rows(&self, batch: &RecordBatch, unit: &InputUnit, epoch: u64) -> Result<()> {
        lock(&self.rows).counts.add(&RowCounts::from_batch(batch)?);
        let [Some(key), Some(status), Some(reason)] =
            ["key", "status", "reason"].map(|name| text(batch, name))
        else {
            return Ok(());
        };
        for row in (0..batch.num_rows()).filter(|row| status.value(*row) == QUARANTINED) {
            let reason = reason.is_valid(row).then(|| reason.value(row));
            lock(&self.quarantine).append(epoch, key.value(row), &unit.file.uri, reason)?;
        }
        Ok(())
    }

    /// Called when all rows of a unit have been added. Checks the share of unreadable rows once
    /// 1,000 rows are read, or all units of the source. All epochs are checked together, because a
    /// resumed run may have few rows left of its first epoch.
    ///
    /// # Errors
    /// [`Error::Refused`] if too many rows are unreadable. A refusal is not restarted.
    pub fn finish_unit(&self, unit: &InputUnit) -> Result<()> {
        let mut rows = lock(&self.rows);
        if rows.counts.read < MIN_ROWS_TO_CHECK {
            rows.units.insert(unit_id(unit));
            if rows.units.len() < self.source_units {
                return Ok(());
            }
        }
        let quarantine = lock(&self.quarantine);
        let checked = check_bad_fraction(&rows.counts, self.max_bad_fraction, quarantine.bad_rows());
        checked.map_err(|error| Error::Refused(error.to_string()))
    }
}

/// Identifies a unit among all units of its source: its file, and where it starts in the file.
pub(crate) fn unit_id(unit: &InputUnit) -> (String, u64) {
    (unit.file.uri.clone(), unit.span.range().start)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::StringArray;
    use tidemill_data::source::{InputFile, Span};

    use super::*;

    /// `n` rows, the first `bad` of them unreadable.
    fn rows(n: usize, bad: usize) -> RecordBatch {
        let column = |value: fn(bool) -> Option<&'static str>| -> Arc<dyn Array> {
            Arc::new(StringArray::from_iter((0..n).map(|row| value(row < bad))))
        };
        let status = column(|bad| Some(if bad { QUARANTINED } else { "kept" }));
        let reason = column(|bad| bad.then_some("format: no image"));
        RecordBatch::try_from_iter([("key", column(|_| Some("k"))), ("status", status), ("reason", reason)])
            .unwrap()
    }

    fn unit(uri: &str) -> InputUnit {
        let file = InputFile { uri: uri.into(), size: 0, identity: String::new(), e_tag: None };
        InputUnit { file, span: Span::Rows(0..1000), resident_bytes: 0 }
    }

    #[test]
    fn too_many_unreadable_rows_are_refused_from_1000_rows_or_all_units() {
        // Units as (uri, rows, unreadable rows), and the refusal after the last one.
        type Units<'a> = &'a [(&'a str, usize, usize)];
        let many: Units = &[("a", 40, 39), ("b", 959, 61), ("c", 1, 0), ("d", 1, 1)];
        let cases: [(usize, Units, Option<&str>); 6] = [
            (9, &many[..3], None),
            (9, many, Some("101 of 1001 rows")),
            (2, &many[..1], None),
            // The same unit twice: not all units have been read.
            (3, &[("c", 43, 7), ("a", 10, 0), ("c", 43, 7)], None),
            (3, &[("c", 43, 7), ("a", 10, 0), ("b", 10, 0)], Some("7 of 63 rows")),
            (2, &[("a", 43, 3), ("b", 43, 3)], None),
        ];
        for (units, added, refused) in cases {
            let folder = tempfile::tempdir().unwrap();
            let accounting = RowAccounting::open(folder.path().to_str().unwrap(), 0.1, units).unwrap();
            let mut error = None;
            for (uri, read, bad) in added {
                assert_eq!(error, None, "{added:?}");
                accounting.add_rows(&rows(*read, *bad), &unit(uri), 0).unwrap();
                error = accounting.finish_unit(&unit(uri)).err().map(|error| error.to_string());
            }
            match (refused, &error) {
                (None, None) => (),
                (Some(refused), Some(error)) => {
                    assert!(error.contains(refused) && error.contains("k: format: no image"), "{error}");
                }
                _ => panic!("{added:?}: {error:?}, expected {refused:?}"),
            }
            let lines = std::fs::read_to_string(folder.path().join("quarantine.jsonl")).unwrap();
            assert_eq!(lines.lines().count(), added.iter().map(|(_, _, bad)| bad).sum::<usize>());
        }
    }
}
