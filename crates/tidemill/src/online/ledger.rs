//! What became of the rows that a process has prepared.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, AsArray, RecordBatch};
use serde_json::json;
use tidemill_data::InputUnit;
use tidemill_data::status::QUARANTINED;
use tidemill_store::Counts;

use crate::error::{Error, Result};

/// What became of rows, from the beginning of this process.
#[derive(Debug)]
pub struct Ledger {
    counts: Mutex<Counts>,
    /// A line for each unreadable row.
    quarantine: Mutex<File>,
    path: String,
}

impl Ledger {
    /// Adds lines to a file in the run's output.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(output: &str) -> Result<Self> {
        let path = format!("{output}/quarantine.jsonl");
        let open = || {
            std::fs::create_dir_all(output)?;
            File::options().create(true).append(true).open(&path)
        };
        let file = open().map_err(|source| Error::Write { path: path.clone(), source })?;
        Ok(Self { counts: Mutex::default(), quarantine: Mutex::new(file), path })
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
            let reason = reason.is_valid(row).then(|| reason.value(row));
            let line =
                json!({ "epoch": epoch, "key": key.value(row), "file": unit.file.uri, "reason": reason });
            // One write for the whole line: several ranks may add to the file.
            let written = lock(&self.quarantine).write_all(format!("{line}\n").as_bytes());
            written.map_err(|source| Error::Write { path: self.path.clone(), source })?;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
