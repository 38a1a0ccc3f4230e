//! What became of the rows that a process has prepared, and how long that took.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, RecordBatch};
use serde::Serialize;
use serde_json::json;
use tidemill_data::InputUnit;
use tidemill_data::prepared::text;
use tidemill_data::status::QUARANTINED;
use tidemill_store::RowCounts;

use crate::engine::local::writer::{JUDGED_FROM, judge};
use crate::error::{Error, Result};

/// What became of rows, from the beginning of this process.
#[derive(Debug)]
pub struct Ledger {
    read: Mutex<Read>,
    quarantine: Mutex<Quarantine>,
    work: Mutex<Vec<Work>>,
    path: String,
    /// Greatest share of unreadable rows.
    allowed: f64,
    /// Units of the source.
    units: usize,
}

/// What a stage has done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Work {
    /// The stage.
    pub stage: &'static str,
    /// Rows it was given.
    pub rows: u64,
    /// Seconds its threads worked, all together.
    pub busy_seconds: f64,
}

#[derive(Debug, Default)]
struct Read {
    counts: RowCounts,
    /// Which units these rows are of, as long as there are too few rows to judge by.
    units: HashSet<(String, u64)>,
}

#[derive(Debug)]
struct Quarantine {
    /// A line for each unreadable row.
    file: File,
    /// Key and reason of the last.
    last: String,
}

impl Ledger {
    /// Adds lines to a file in the run's output; `allowed` is the greatest share of rows that may be unreadable, `units` how
    /// many the source has.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(output: &str, allowed: f64, units: usize) -> Result<Self> {
        let path = format!("{output}/quarantine.jsonl");
        let open = || {
            std::fs::create_dir_all(output)?;
            File::options().create(true).append(true).open(&path)
        };
        let file = open().map_err(|source| Error::Write { path: path.clone(), source })?;
        let quarantine = Mutex::new(Quarantine { file, last: String::new() });
        let (read, work) = Default::default();
        Ok(Self { read, quarantine, work, path, allowed, units })
    }

    /// What became of all rows so far.
    pub fn counts(&self) -> RowCounts {
        lock(&self.read).counts.clone()
    }

    /// What each stage has done; of the engine's those of epochs that are over, and all once nobody takes batches any more.
    pub fn work(&self) -> Vec<Work> {
        lock(&self.work).clone()
    }

    /// Adds what a stage has done.
    pub fn worked(&self, stage: &'static str, rows: u64, busy_seconds: f64) {
        let mut all = lock(&self.work);
        match all.iter_mut().find(|work| work.stage == stage) {
            Some(work) => {
                work.rows += rows;
                work.busy_seconds += busy_seconds;
            }
            None => all.push(Work { stage, rows, busy_seconds }),
        }
    }

    /// Adds rows of a unit.
    ///
    /// # Errors
    /// If a column is missing, or the file cannot be written.
    pub fn add(&self, batch: &RecordBatch, unit: &InputUnit, epoch: u64) -> Result<()> {
        lock(&self.read).counts.add(&RowCounts::from_batch(batch)?);
        let [Some(key), Some(status), Some(reason)] =
            ["key", "status", "reason"].map(|name| text(batch, name))
        else {
            return Ok(());
        };
        for row in (0..batch.num_rows()).filter(|row| status.value(*row) == QUARANTINED) {
            let (key, reason) = (key.value(row), reason.is_valid(row).then(|| reason.value(row)));
            let line = json!({ "epoch": epoch, "key": key, "file": unit.file.uri, "reason": reason });
            let mut quarantine = lock(&self.quarantine);
            quarantine.last = format!("{key}: {}", reason.unwrap_or_default());
            // One write for the whole line: several ranks may add to the file.
            let written = quarantine.file.write_all(format!("{line}\n").as_bytes());
            written.map_err(|source| Error::Write { path: self.path.clone(), source })?;
        }
        Ok(())
    }

    /// All rows of a unit have been added. Refuses to go on if too many are unreadable, once 1,000 rows are read or all
    /// units of the source. A run that goes on may have few rows left of an epoch: epochs are not judged by themselves.
    ///
    /// # Errors
    /// [`Error::Refused`], so that workers are not started again and again.
    pub fn end_unit(&self, unit: &InputUnit) -> Result<()> {
        let mut read = lock(&self.read);
        if read.counts.read < JUDGED_FROM {
            read.units.insert(name(unit));
            if read.units.len() < self.units {
                return Ok(());
            }
        }
        let last = lock(&self.quarantine).last.clone();
        judge(&read.counts, self.allowed, last).map_err(|error| Error::Refused(error.to_string()))
    }
}

/// What tells a unit from all others of its source: its file, and where in it.
pub fn name(unit: &InputUnit) -> (String, u64) {
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

    /// So many rows, the first of them unreadable.
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
        InputUnit { file, span: Span::Rows(0..1000), held: 0 }
    }

    #[test]
    fn too_many_unreadable_rows_are_refused_once_there_are_enough_to_tell() {
        // Units with so many rows, so many of them unreadable; what is said after the last.
        type Units<'a> = &'a [(&'a str, usize, usize)];
        let many: Units = &[("a", 40, 39), ("b", 959, 61), ("c", 1, 0), ("d", 1, 1)];
        let cases: [(usize, Units, Option<&str>); 6] = [
            (9, &many[..3], None),
            (9, many, Some("101 of 1001 rows")),
            (2, &many[..1], None),
            // The last units of an epoch, and then the first: not all have been seen.
            (3, &[("c", 43, 7), ("a", 10, 0), ("c", 43, 7)], None),
            (3, &[("c", 43, 7), ("a", 10, 0), ("b", 10, 0)], Some("7 of 63 rows")),
            (2, &[("a", 43, 3), ("b", 43, 3)], None),
        ];
        for (units, added, refused) in cases {
            let folder = tempfile::tempdir().unwrap();
            let ledger = Ledger::open(folder.path().to_str().unwrap(), 0.1, units).unwrap();
            let mut said = None;
            for (uri, read, bad) in added {
                assert_eq!(said, None, "{added:?}");
                ledger.add(&rows(*read, *bad), &unit(uri), 0).unwrap();
                said = ledger.end_unit(&unit(uri)).err().map(|error| error.to_string());
            }
            match (refused, &said) {
                (None, None) => (),
                (Some(refused), Some(said)) => {
                    assert!(said.contains(refused) && said.contains("k: format: no image"), "{said}");
                }
                _ => panic!("{added:?}: {said:?}, expected {refused:?}"),
            }
            let lines = std::fs::read_to_string(folder.path().join("quarantine.jsonl")).unwrap();
            assert_eq!(lines.lines().count(), added.iter().map(|(_, _, bad)| bad).sum::<usize>());
        }
    }
}
