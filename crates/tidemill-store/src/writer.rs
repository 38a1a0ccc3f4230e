//! Writes a dataset, unit by unit. Any number of writers may work on the same units, die or repeat: files lie
//! under names of their attempt, and the first commit of a unit is the one that counts. What an earlier run
//! with other settings computed and the present settings would compute again is copied.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arrow::array::RecordBatch;
use tidemill_io::Location;

use self::earlier::Earlier;
pub use self::earlier::Known;
use self::rows::UnitRows;
use crate::commit::{Commit, UnitId, UnitKey};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::layout::COMMITS;
use crate::manifest::Manifest;
use crate::spec::{DatasetSpec, Header, mark};

mod earlier;
mod rows;
mod split;
mod tensors;

/// A dataset open for writing. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Writer {
    location: Location,
    header: Header,
    earlier: Arc<Earlier>,
}

/// How the race for a unit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This attempt is part of the dataset.
    Committed(Commit),
    /// Somebody else's attempt, this one, had been committed before.
    Superseded(Commit),
}

impl Outcome {
    /// The commit that counts.
    pub fn commit(&self) -> &Commit {
        match self {
            Self::Committed(commit) | Self::Superseded(commit) => commit,
        }
    }
}

impl Writer {
    /// Makes sure that a dataset can be written at `uri`, at the cost of one small object: before models are loaded,
    /// say.
    ///
    /// # Errors
    /// If the folder cannot be written to; [`Error::Format`] if it belongs to another version.
    pub fn check(uri: &str) -> Result<()> {
        mark(&Location::open(uri)?)
    }

    /// Opens the dataset at `uri`; makes it if there is none. `empty_caption` is what
    /// readers give of a row of `text` whose caption is empty: its embedding in f16, or its token ids. Shards that were made with other settings stay where they are
    /// until [`snapshot`](Self::snapshot) leaves them behind.
    ///
    /// # Errors
    /// [`Error::Config`] if the settings make no sense; [`Error::Format`] if what is there cannot be read.
    pub fn open(uri: &str, spec: DatasetSpec, empty_caption: &[u8]) -> Result<Self> {
        let location = Location::open(uri)?;
        let header = Header::create(&location, spec, empty_caption)?;
        Self::with_header(location, header)
    }

    /// Opens a dataset that another process has opened already, to write the same kind of shards.
    ///
    /// # Errors
    /// If what is there cannot be read.
    pub fn join(uri: &str, header: Header) -> Result<Self> {
        Self::with_header(Location::open(uri)?, header)
    }

    fn with_header(location: Location, header: Header) -> Result<Self> {
        let earlier = Earlier::new(Manifest::newest(&location)?, &committed(&location)?);
        Ok(Self { location, header, earlier: Arc::new(earlier) })
    }

    /// What another process needs to [`join`](Self::join).
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.header.spec
    }

    /// The units that are committed and need no work.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn committed(&self) -> Result<BTreeSet<UnitId>> {
        committed(&self.location)
    }

    /// What the newest snapshot knows of a unit's rows under other settings, if any of its tensors is still
    /// good. [`UnitWriter::write`] fills in these tensors by itself where the batch has nulls.
    ///
    /// # Errors
    /// If the file of the rows cannot be read.
    pub fn known(&self, unit: &UnitKey) -> Result<Option<Known>> {
        self.earlier.known(&self.location, unit)
    }

    /// What is committed of `plan`, as a dataset that no snapshot says yet.
    ///
    /// # Errors
    /// If commits cannot be read.
    pub fn preview(&self, plan: &[UnitId]) -> Result<Dataset> {
        let committed = self.committed()?;
        let units: BTreeSet<&UnitId> = plan.iter().filter(|unit| committed.contains(*unit)).collect();
        let manifest = Manifest::new(0, self.header.clone(), self.commits(units)?);
        Dataset::preview(self.location.clone(), manifest)
    }

    /// The same writer, which takes good tensors from these units instead of those of the newest snapshot.
    ///
    /// # Errors
    /// If the commits cannot be listed.
    pub fn with_earlier(&self, dataset: &Dataset) -> Result<Self> {
        let earlier = Earlier::new(Some(dataset.manifest()?.clone()), &self.committed()?);
        Ok(Self { earlier: Arc::new(earlier), ..self.clone() })
    }

    /// Reads the commits of units.
    ///
    /// # Errors
    /// If one is missing or is no commit.
    pub fn commits<'a>(&self, units: impl IntoIterator<Item = &'a UnitId>) -> Result<Vec<Commit>> {
        read_commits(&self.location, units)
    }

    /// Starts an attempt at a unit. What it writes is invisible until [`UnitWriter::commit`]; an attempt that
    /// is dropped leaves at most files that no commit names.
    pub fn begin(&self, unit: &UnitKey) -> UnitWriter {
        let id = unit.id();
        let attempt = attempt_name();
        let folder = id.folder(&attempt);
        let rows = UnitRows::new(&self.location, folder, self.spec(), self.earlier.find(unit));
        UnitWriter { location: self.location.clone(), id, unit: unit.clone(), attempt, rows }
    }

    /// Makes the next snapshot: the dataset is from now on what is committed of `plan`, the units that the
    /// current settings and sources ask for. Other units stay on storage, but readers do not see them. Gives
    /// the newest snapshot if it says the same already.
    ///
    /// # Errors
    /// If commits cannot be read or the snapshot cannot be written.
    pub fn snapshot(&self, plan: &[UnitId]) -> Result<Manifest> {
        loop {
            let committed = self.committed()?;
            let units: BTreeSet<&UnitId> = plan.iter().filter(|unit| committed.contains(*unit)).collect();
            let newest = Manifest::newest(&self.location)?;
            let number = newest.as_ref().map_or(1, |newest| newest.number + 1);
            let next = Manifest::new(number, self.header.clone(), self.commits(units)?);
            let same =
                |newest: &Manifest| newest.commits == next.commits && newest.header.is_like(&next.header);
            if let Some(newest) = newest.filter(same) {
                return Ok(newest);
            }
            // If somebody else took the number, look again at what there is.
            if next.put(&self.location)? {
                return Ok(next);
            }
        }
    }
}

/// One attempt at a unit.
pub struct UnitWriter {
    location: Location,
    id: UnitId,
    unit: UnitKey,
    attempt: String,
    rows: UnitRows,
}

impl UnitWriter {
    /// Appends rows in the unit's order: a batch of the columns that ARCHITECTURE.md lists under "What
    /// `Encode` gives". A kept row's tensor that is null is taken from the unit's earlier commit, if that has
    /// it and it is still good.
    ///
    /// # Errors
    /// [`Error::Column`] if a column is missing or has another form; a failure of the store.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows.write(batch)
    }

    /// Ends the files and commits them, unless the unit has been committed meanwhile.
    ///
    /// # Errors
    /// If the store fails, and the commit is not there nevertheless.
    pub fn commit(self) -> Result<Outcome> {
        let Self { location, id, unit, attempt, rows } = self;
        let (counts, files) = rows.finish()?;
        let commit = Commit { id, unit, attempt, counts, files };
        let key = commit.id.commit_key();
        let text = serde_json::to_vec_pretty(&commit)
            .map_err(|e| Error::Format { path: location.uri_of(&key), problem: e.to_string() })?;
        let put = location.put_if_absent(&key, text.into());
        if let Ok(true) = put {
            return Ok(Outcome::Committed(commit));
        }
        // Whether somebody else won, or our own put arrived although it seemed to fail, the attempt's name
        // tells.
        match (location.get_if_present(&key)?, put) {
            (Some(bytes), _) => {
                let theirs = parse(&location, &key, &bytes)?;
                let ours = theirs.attempt == commit.attempt;
                Ok(if ours { Outcome::Committed(commit) } else { Outcome::Superseded(theirs) })
            }
            (None, Err(error)) => Err(error.into()),
            (None, Ok(_)) => Err(Error::Format {
                path: location.uri_of(&key),
                problem: "the commit was there and is gone; run `tidemill preprocess` again".into(),
            }),
        }
    }
}

pub(crate) fn committed(location: &Location) -> Result<BTreeSet<UnitId>> {
    Ok(location.list(COMMITS)?.iter().filter_map(|key| UnitId::of_commit_key(key)).collect())
}

pub(crate) fn read_commits<'a>(
    location: &Location,
    units: impl IntoIterator<Item = &'a UnitId>,
) -> Result<Vec<Commit>> {
    let keys: Vec<String> = units.into_iter().map(UnitId::commit_key).collect();
    let objects = location.get_all(&keys)?;
    keys.iter().zip(objects).map(|(key, bytes)| parse(location, key, &bytes)).collect()
}

fn parse(location: &Location, key: &str, bytes: &[u8]) -> Result<Commit> {
    let fail = |problem: String| Error::Format { path: location.uri_of(key), problem };
    let commit: Commit = serde_json::from_slice(bytes).map_err(|e| {
        fail(format!(
            "is no commit that this version can read ({e}); if it is damaged, remove it and run `tidemill preprocess` \
             again; if another version of Tidemill wrote it, preprocess into another output"
        ))
    })?;
    match commit.problem() {
        None => Ok(commit),
        Some(problem) => Err(fail(format!("does not add up: {problem}; remove it and preprocess again"))),
    }
}

/// A name that no other attempt has: the keys of `RandomState` are random in each process and differ at each
/// call.
fn attempt_name() -> String {
    let now = std::time::SystemTime::now();
    format!("{:016x}", RandomState::new().hash_one((now, std::process::id())))
}
