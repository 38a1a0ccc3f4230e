//! What became of the rows that a process has prepared.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, AsArray, RecordBatch};
use serde_json::json;
use tidemill_data::InputUnit;
use tidemill_data::status::QUARANTINED;
use tidemill_store::Counts;

use crate::engine::{JUDGED_FROM, judge};
use crate::error::{Error, Result};

/// What became of rows, from the beginning of this process.
#[derive(Debug)]
pub struct Ledger {
    counts: Mutex<Counts>,
    quarantine: Mutex<Quarantine>,
    path: String,
    /// Greatest share of unreadable rows.
    allowed: f64,
}

#[derive(Debug)]
struct Quarantine {
    /// A line for each unreadable row.
    file: File,
    /// Key and reason of the last.
    last: String,
}

impl Ledger {
    /// Adds lines to a file in the run's output; `allowed` is the greatest share of rows that may be unreadable.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(output: &str, allowed: f64) -> Result<Self> {
        let path = format!("{output}/quarantine.jsonl");
        let open = || {
            std::fs::create_dir_all(output)?;
            File::options().create(true).append(true).open(&path)
        };
        let file = open().map_err(|source| Error::Write { path: path.clone(), source })?;
        let quarantine = Quarantine { file, last: String::new() };
        Ok(Self { counts: Mutex::default(), quarantine: Mutex::new(quarantine), path, allowed })
    }

    /// What became of all rows so far.
    pub fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }

    /// Adds rows of a unit.
    ///
    /// # Errors
    /// If a column is missing, or the file cannot be written.
    pub fn add(&self, batch: &RecordBatch, unit: &InputUnit, epoch: u64) -> Result<()> {
        lock(&self.counts).add(&Counts::of(batch)?);
        let text = |name| batch.column_by_name(name).and_then(|column| column.as_string_opt::<i32>());
        let (Some(key), Some(status), Some(reason)) = (text("key"), text("status"), text("reason")) else {
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

    /// Refuses to go on if too many rows are unreadable, once enough are read to tell. A run that goes on may have few
    /// left in an epoch, so epochs are not judged by themselves.
    ///
    /// # Errors
    /// [`Error::Refused`], so that workers are not started again and again.
    pub fn judge(&self) -> Result<()> {
        let counts = self.counts();
        if counts.read < JUDGED_FROM {
            return Ok(());
        }
        let last = lock(&self.quarantine).last.clone();
        judge(&counts, self.allowed, last).map_err(|error| Error::Refused(error.to_string()))
    }
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

    #[test]
    fn too_many_unreadable_rows_are_refused_once_there_are_enough_to_tell() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path().to_str().unwrap(), 0.1).unwrap();
        let file = InputFile { uri: "f".into(), size: 0, identity: String::new() };
        let unit = InputUnit { file, span: Span::Rows(0..1000), held: 0 };
        for (read, bad, refused) in
            [(40, 39, false), (959, 61, false), (1, 0, false), (1, 1, true), (9, 0, false)]
        {
            ledger.add(&rows(read, bad), &unit, 0).unwrap();
            let judged = ledger.judge();
            let said = judged.as_ref().map_err(ToString::to_string).err().unwrap_or_default();
            assert_eq!(judged.is_err(), refused, "{said}");
            assert_eq!(
                said.contains("101 of 1001 rows") && said.contains("k: format: no image"),
                refused,
                "{said}"
            );
        }
        let lines = std::fs::read_to_string(folder.path().join("quarantine.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 101);
    }
}
