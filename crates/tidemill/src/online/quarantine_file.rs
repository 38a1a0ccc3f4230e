//! `quarantine.jsonl`: a line for each row that online training could not use.

use std::fs::File;
use std::io::Write;

use serde_json::json;

use crate::engine::BadRows;
use crate::error::{Error, Result};

/// The quarantine file of a run, opened for appending.
#[derive(Debug)]
pub(super) struct QuarantineFile {
    file: File,
    path: String,
    bad_rows: BadRows,
}

impl QuarantineFile {
    /// Opens `quarantine.jsonl` in the run's output folder.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(output: &str) -> Result<Self> {
        let path = format!("{output}/quarantine.jsonl");
        let open = || {
            std::fs::create_dir_all(output)?;
            File::options().create(true).append(true).open(&path)
        };
        let file = open().map_err(|source| Error::Write { path: path.clone(), source })?;
        Ok(Self { file, path, bad_rows: BadRows::default() })
    }

    /// Appends the line of a row: its epoch, key, source file and the reason.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append(&mut self, epoch: u64, key: &str, uri: &str, reason: Option<&str>) -> Result<()> {
        let line = json!({ "epoch": epoch, "key": key, "file": uri, "reason": reason });
        self.bad_rows.add(key, reason.unwrap_or("unknown"));
        // One write for the whole line, because several ranks may append to the file.
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    /// A row for each kind of error.
    pub fn bad_rows(&self) -> &BadRows {
        &self.bad_rows
    }
}
