//! One attempt at a unit: writes its files, and commits them unless another attempt was first.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use arrow::array::RecordBatch;
use tidemill_io::Location;

use crate::dataset::commit::{Commit, parse_commit};
use crate::dataset::spec::DatasetSpec;
use crate::dataset::unit::{UnitId, UnitKey};
use crate::error::{Error, Result};
use crate::writer::unit_files::UnitFiles;

/// Result of committing an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// This attempt is now part of the dataset.
    Committed(Commit),
    /// Another attempt, this one, was committed first.
    Superseded(Commit),
}

impl CommitOutcome {
    /// The commit that is part of the dataset.
    pub fn commit(&self) -> &Commit {
        match self {
            Self::Committed(commit) | Self::Superseded(commit) => commit,
        }
    }
}

/// One attempt at a unit.
pub struct UnitWriter {
    location: Location,
    id: UnitId,
    unit: UnitKey,
    attempt: String,
    rows: UnitFiles,
}

impl UnitWriter {
    /// Starts an attempt. `earlier` is a commit with reusable tensors, and the names of its columns
    /// that are still valid.
    pub(super) fn new(
        location: &Location,
        spec: &DatasetSpec,
        unit: &UnitKey,
        earlier: Option<(&Commit, BTreeSet<String>)>,
    ) -> Self {
        let id = unit.id();
        let attempt = attempt_name();
        let rows = UnitFiles::new(location, id.folder(&attempt), spec, earlier);
        Self { location: location.clone(), id, unit: unit.clone(), attempt, rows }
    }

    /// Appends rows in the unit's order. docs/design/pipeline.md lists the columns of the batch
    /// under "What `Encode` returns". A null tensor of a kept row is taken from the unit's earlier
    /// commit, if that has it and it is still valid.
    ///
    /// # Errors
    /// [`Error::Column`] if a column is missing or has another form; a failure of the store.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows.write(batch)
    }

    /// Ends the files and commits them, unless the unit was committed meanwhile.
    ///
    /// # Errors
    /// If the store fails and the commit does not exist.
    pub fn commit(self) -> Result<CommitOutcome> {
        let Self { location, id, unit, attempt, rows } = self;
        let (counts, files) = rows.finish()?;
        let commit = Commit { id, unit, attempt, counts, files };
        let key = commit.id.commit_key();
        let text = serde_json::to_vec_pretty(&commit)
            .map_err(|e| Error::Format { path: location.uri_of(&key), problem: e.to_string() })?;
        let put = location.put_if_absent(&key, text.into());
        if let Ok(true) = put {
            return Ok(CommitOutcome::Committed(commit));
        }
        // The attempt's name shows whether another attempt won or our own put arrived although it
        // seemed to fail.
        match (location.get_if_present(&key)?, put) {
            (Some(bytes), _) => {
                let other = parse_commit(&location, &key, &bytes)?;
                let is_own = other.attempt == commit.attempt;
                Ok(if is_own { CommitOutcome::Committed(commit) } else { CommitOutcome::Superseded(other) })
            }
            (None, Err(error)) => Err(error.into()),
            (None, Ok(_)) => Err(Error::Format {
                path: location.uri_of(&key),
                problem: "the commit was there and is gone; run `tidemill preprocess` again".into(),
            }),
        }
    }
}

/// A name that no other attempt has. The keys of `RandomState` are random in each process and
/// differ at each call.
pub fn attempt_name() -> String {
    let now = std::time::SystemTime::now();
    format!("{:016x}", RandomState::new().hash_one((now, std::process::id())))
}
