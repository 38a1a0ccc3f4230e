//! Opens a dataset for writing, and makes its snapshots.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidemill_io::Location;

use crate::dataset::commit::{Commit, list_committed_units, read_commits};
use crate::dataset::header::{Header, mark_as_dataset};
use crate::dataset::manifest::Manifest;
use crate::dataset::reader::Dataset;
use crate::dataset::spec::DatasetSpec;
use crate::dataset::unit::{UnitId, UnitKey};
use crate::error::Result;
use crate::writer::reuse::{ReusableCommits, ReusableRows};
use crate::writer::unit_writer::UnitWriter;

/// A dataset open for writing. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DatasetWriter {
    location: Location,
    header: Header,
    earlier: Arc<ReusableCommits>,
}

impl DatasetWriter {
    /// Makes sure that a dataset can be written at `uri`, at the cost of one small object: before models are loaded,
    /// say.
    ///
    /// # Errors
    /// If the folder cannot be written to; [`Error::Format`] if it belongs to another version.
    pub fn check(uri: &str) -> Result<()> {
        mark_as_dataset(&Location::open(uri)?)
    }

    /// Opens the dataset at `uri`; makes it if there is none. `empty_caption` is what
    /// readers give of a row of `text` whose caption is empty: its embedding in f16, or its token ids. ShardReader that were made with other settings stay where they are
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
        let earlier =
            ReusableCommits::new(Manifest::read_newest(&location)?, &list_committed_units(&location)?);
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
    pub fn committed_units(&self) -> Result<BTreeSet<UnitId>> {
        list_committed_units(&self.location)
    }

    /// What the newest snapshot knows of a unit's rows under other settings, if any of its tensors is still
    /// good. [`UnitWriter::write`] fills in these tensors by itself where the batch has nulls.
    ///
    /// # Errors
    /// If the file of the rows cannot be read.
    pub fn find_reusable(&self, unit: &UnitKey) -> Result<Option<ReusableRows>> {
        self.earlier.find_reusable(&self.location, unit)
    }

    /// What is committed of `plan`, as a dataset that no snapshot says yet.
    ///
    /// # Errors
    /// If commits cannot be read.
    pub fn open_committed(&self, plan: &[UnitId]) -> Result<Dataset> {
        let committed = self.committed_units()?;
        let units: BTreeSet<&UnitId> = plan.iter().filter(|unit| committed.contains(*unit)).collect();
        let manifest = Manifest::new(0, self.header.clone(), self.commits(units)?);
        Dataset::without_snapshot(self.location.clone(), manifest)
    }

    /// The same writer, which takes good tensors from these units instead of those of the newest snapshot.
    ///
    /// # Errors
    /// If the commits cannot be listed.
    pub fn with_reusable_from(&self, dataset: &Dataset) -> Result<Self> {
        let earlier = ReusableCommits::new(Some(dataset.manifest()?.clone()), &self.committed_units()?);
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
    pub fn begin_unit(&self, unit: &UnitKey) -> UnitWriter {
        UnitWriter::new(&self.location, self.spec(), unit, self.earlier.find(unit))
    }

    /// Makes the next snapshot: the dataset is from now on what is committed of `plan`, the units that the
    /// current settings and sources ask for. Other units stay on storage, but readers do not see them. Gives
    /// the newest snapshot if it says the same already.
    ///
    /// # Errors
    /// If commits cannot be read or the snapshot cannot be written.
    pub fn snapshot(&self, plan: &[UnitId]) -> Result<Manifest> {
        loop {
            let committed = self.committed_units()?;
            let units: BTreeSet<&UnitId> = plan.iter().filter(|unit| committed.contains(*unit)).collect();
            let newest = Manifest::read_newest(&self.location)?;
            let number = newest.as_ref().map_or(1, |newest| newest.number + 1);
            let next = Manifest::new(number, self.header.clone(), self.commits(units)?);
            let same = |newest: &Manifest| {
                newest.commits == next.commits && newest.header.is_compatible_with(&next.header)
            };
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
