//! Opens a dataset for writing and makes its snapshots.

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
    reusable: Arc<ReusableCommits>,
}

impl DatasetWriter {
    /// Checks that a dataset can be written at `uri`, at the cost of one small object. Call it
    /// before expensive work such as loading models.
    ///
    /// # Errors
    /// If the folder cannot be written to; [`Error::Format`](crate::Error::Format) if it belongs to
    /// another version.
    pub fn check(uri: &str) -> Result<()> {
        mark_as_dataset(&Location::open(uri)?)
    }

    /// Opens the dataset at `uri`, and creates it if it does not exist. `empty_caption` is the
    /// `text` row of an empty caption in the form in which readers give it: its embedding in f16,
    /// or its token ids. Shards that were made with other settings stay until
    /// [`snapshot`](Self::snapshot) leaves them out.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if a setting is not valid;
    /// [`Error::Format`](crate::Error::Format) if the existing dataset cannot be read.
    pub fn open(uri: &str, spec: DatasetSpec, empty_caption: &[u8]) -> Result<Self> {
        let location = Location::open(uri)?;
        let header = Header::create(&location, spec, empty_caption)?;
        Self::with_header(location, header)
    }

    /// Opens a dataset that another process has opened already, to write the same kind of shards.
    ///
    /// # Errors
    /// If the existing dataset cannot be read.
    pub fn join(uri: &str, header: Header) -> Result<Self> {
        Self::with_header(Location::open(uri)?, header)
    }

    fn with_header(location: Location, header: Header) -> Result<Self> {
        let reusable =
            ReusableCommits::new(Manifest::read_newest(&location)?, &list_committed_units(&location)?);
        Ok(Self { location, header, reusable: Arc::new(reusable) })
    }

    /// The header that another process needs to [`join`](Self::join).
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The specification that all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.header.spec
    }

    /// Lists the units that are committed and need no work.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn committed_units(&self) -> Result<BTreeSet<UnitId>> {
        list_committed_units(&self.location)
    }

    /// Finds what can be reused of an reusable commit of the unit's rows under other settings.
    /// Returns `None` if none of its tensors is still valid. [`UnitWriter::write`] copies these
    /// tensors by itself where the batch has nulls.
    ///
    /// # Errors
    /// If the reusable rows cannot be read.
    pub fn find_reusable(&self, unit: &UnitKey) -> Result<Option<ReusableRows>> {
        self.reusable.find_reusable(&self.location, unit)
    }

    /// Opens the committed units of `plan` as a dataset, without making a snapshot.
    ///
    /// # Errors
    /// If commits cannot be read.
    pub fn open_committed(&self, plan: &[UnitId]) -> Result<Dataset> {
        let committed = self.committed_units()?;
        let units: BTreeSet<&UnitId> = plan.iter().filter(|unit| committed.contains(*unit)).collect();
        let manifest = Manifest::new(0, self.header.clone(), self.commits(units)?);
        Dataset::without_snapshot(self.location.clone(), manifest)
    }

    /// Returns a writer that reuses tensors of this dataset's units instead of those of the newest
    /// snapshot.
    ///
    /// # Errors
    /// If the commits cannot be listed.
    pub fn with_reusable_from(&self, dataset: &Dataset) -> Result<Self> {
        let reusable = ReusableCommits::new(Some(dataset.manifest()?.clone()), &self.committed_units()?);
        Ok(Self { reusable: Arc::new(reusable), ..self.clone() })
    }

    /// Reads the commits of units.
    ///
    /// # Errors
    /// If a commit is missing or cannot be read.
    pub fn commits<'a>(&self, units: impl IntoIterator<Item = &'a UnitId>) -> Result<Vec<Commit>> {
        read_commits(&self.location, units)
    }

    /// Starts an attempt at a unit. Its files are invisible until [`UnitWriter::commit`]. An
    /// attempt that is dropped leaves at most files that no commit names.
    pub fn begin_unit(&self, unit: &UnitKey) -> UnitWriter {
        UnitWriter::new(&self.location, self.spec(), unit, self.reusable.find(unit))
    }

    /// Makes the next snapshot: the committed units of `plan`, which lists the units that the
    /// current settings and sources ask for. Other units stay in the store, but readers do not see
    /// them. Returns the newest snapshot if it has the same content already.
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
            let is_same = |newest: &Manifest| {
                newest.commits == next.commits && newest.header.is_compatible_with(&next.header)
            };
            if let Some(newest) = newest.filter(is_same) {
                return Ok(newest);
            }
            // Another writer took the number, so look again at what is there.
            if next.put(&self.location)? {
                return Ok(next);
            }
        }
    }
}
