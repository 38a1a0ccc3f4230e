//! A dataset open for reading: the content of one manifest snapshot. Other files in its folder do
//! not count.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use tidemill_io::Location;

use crate::bucket::Bucket;
use crate::dataset::column_group::ColumnGroup;
use crate::dataset::header::{Header, is_dataset};
use crate::dataset::manifest::{Manifest, manifest_key, unreadable_manifest};
use crate::dataset::manifest_file::find_store_failure;
use crate::dataset::row_counts::RowCounts;
use crate::dataset::spec::DatasetSpec;
use crate::dataset::split::Split;
use crate::dataset::unit_index::{SnapshotIndex, UnitIndex};
use crate::error::{Error, Result};

/// A dataset at one snapshot. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    location: Location,
    empty_caption: Bytes,
    number: u64,
    header: Header,
    digest: String,
    units: UnitIndex,
    /// The whole manifest. It is read when it is first needed.
    manifest: OnceLock<Manifest>,
}

/// Totals of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of units.
    pub units: u64,
    /// Number of files.
    pub files: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// What became of the rows read.
    pub rows: RowCounts,
    /// Training rows by bucket.
    pub training: BTreeMap<Bucket, u64>,
    /// Validation rows by bucket.
    pub validation: BTreeMap<Bucket, u64>,
}

impl Dataset {
    /// Opens the newest snapshot of the dataset at `uri`.
    ///
    /// # Errors
    /// [`Error::NoDataset`], [`Error::NoManifest`], or [`Error::Format`] if the dataset cannot be
    /// read.
    pub fn open(uri: &str) -> Result<Self> {
        let location = Location::open(uri)?;
        if !is_dataset(&location)? {
            return Err(Error::NoDataset { uri: location.uri().into() });
        }
        let newest = Manifest::list_numbers(&location)?.last().copied();
        let number = newest.ok_or_else(|| Error::NoManifest { uri: location.uri().into() })?;
        Self::read(location, number)
    }

    fn read(location: Location, number: u64) -> Result<Self> {
        let key = manifest_key(number);
        let snapshot = SnapshotIndex::read(&location, &key);
        let snapshot = snapshot.map_err(|problem| match find_store_failure(problem) {
            Ok(failure) => failure.into(),
            Err(problem) => unreadable_manifest(&location, &key, &*problem),
        })?;
        Self::new(location, number, snapshot)
    }

    fn new(location: Location, number: u64, snapshot: SnapshotIndex) -> Result<Self> {
        let SnapshotIndex { header, digest, units } = snapshot;
        let empty_caption = header.empty_caption(&location)?;
        let manifest = OnceLock::new();
        Ok(Self {
            inner: Arc::new(Inner { location, empty_caption, number, header, digest, units, manifest }),
        })
    }

    /// Opens a dataset that no snapshot describes yet.
    pub(crate) fn without_snapshot(location: Location, manifest: Manifest) -> Result<Self> {
        let (header, digest) = (manifest.header.clone(), manifest.digest());
        let units = UnitIndex::from_commits(&manifest.commits);
        let dataset = Self::new(location, manifest.number, SnapshotIndex { header, digest, units })?;
        dataset.inner.manifest.get_or_init(|| manifest);
        Ok(dataset)
    }

    /// Opens the same dataset at another snapshot.
    ///
    /// # Errors
    /// If there is no snapshot with this number.
    pub fn at_snapshot(&self, number: u64) -> Result<Self> {
        if number == self.snapshot_number() {
            return Ok(self.clone());
        }
        Self::read(self.location().clone(), number)
    }

    /// The description that all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.inner.header.spec
    }

    /// Digest of everything that shaped the tensors: models and settings, but not which rows there
    /// are.
    pub fn digest(&self) -> String {
        self.spec().digest()
    }

    /// The empty caption, in the form in which readers give a row of `text`.
    pub fn empty_caption(&self) -> &[u8] {
        &self.inner.empty_caption
    }

    /// Number of the snapshot.
    pub fn snapshot_number(&self) -> u64 {
        self.inner.number
    }

    /// Digest of the rows that the snapshot holds, see [`Manifest::digest`].
    pub fn manifest_digest(&self) -> &str {
        &self.inner.digest
    }

    /// The manifest. It is read when it is first needed; streams do without it.
    ///
    /// # Errors
    /// If the manifest cannot be read or is not consistent.
    pub fn manifest(&self) -> Result<&Manifest> {
        if let Some(manifest) = self.inner.manifest.get() {
            return Ok(manifest);
        }
        let manifest = Manifest::read(self.location(), self.snapshot_number())?;
        if let Some((commit, problem)) =
            manifest.commits.iter().find_map(|c| Some((c, c.find_contradiction()?)))
        {
            return Err(Error::Format {
                path: self.location().uri_of(&manifest_key(self.snapshot_number())),
                problem: format!("unit {} is not consistent: {problem}", commit.id),
            });
        }
        Ok(self.inner.manifest.get_or_init(|| manifest))
    }

    /// The units of the snapshot, in its order.
    pub(crate) fn units(&self) -> &UnitIndex {
        &self.inner.units
    }

    /// The location of the dataset.
    pub fn location(&self) -> &Location {
        &self.inner.location
    }

    /// The buckets of a resolution, with or without rows. Empty if the dataset was not prepared for
    /// the resolution.
    pub fn buckets(&self, resolution: u32) -> Vec<Bucket> {
        let buckets = self.spec().latents.keys();
        buckets.copied().filter(|bucket| bucket.resolution == resolution).collect()
    }

    /// The buckets of a resolution that have rows.
    ///
    /// # Errors
    /// [`Error::Empty`] if no bucket has rows.
    pub fn buckets_with_rows(&self, split: Split, resolution: u32) -> Result<Vec<Bucket>> {
        let buckets = self.buckets(resolution);
        let with_rows: Vec<Bucket> =
            buckets.iter().copied().filter(|bucket| self.num_rows(split, *bucket) > 0).collect();
        if with_rows.is_empty() {
            let bucket = buckets.first().copied().unwrap_or(Bucket::square(resolution));
            return Err(self.no_rows_error(split, bucket));
        }
        Ok(with_rows)
    }

    /// Number of rows of a split and bucket.
    pub fn num_rows(&self, split: Split, bucket: Bucket) -> u64 {
        self.units().rows(ColumnGroup::Latents(split, bucket)).sum()
    }

    /// Computes the totals of the dataset.
    ///
    /// # Errors
    /// If the manifest cannot be read or is not consistent.
    pub fn totals(&self) -> Result<Totals> {
        let commits = &self.manifest()?.commits;
        let mut rows = RowCounts::default();
        commits.iter().for_each(|commit| rows.add(&commit.counts));
        let by_bucket = |split| {
            let buckets = self.spec().latents.keys();
            buckets.map(|bucket| (*bucket, self.num_rows(split, *bucket))).collect::<BTreeMap<_, _>>()
        };
        let files = commits.iter().flat_map(|commit| &commit.files);
        Ok(Totals {
            units: commits.len() as u64,
            files: files.clone().count() as u64,
            bytes: files.map(|file| file.bytes).sum(),
            rows,
            training: by_bucket(Split::Train),
            validation: by_bucket(Split::Validation),
        })
    }

    /// The error for a split and bucket without rows.
    pub(crate) fn no_rows_error(&self, split: Split, bucket: Bucket) -> Error {
        let hint = if self.spec().latents.contains_key(&bucket) {
            match split {
                Split::Train => "see `tidemill inspect` for why rows were rejected",
                Split::Validation => {
                    "it was made without a validation set; set [validation] share and run `tidemill preprocess` again, which copies what is encoded"
                }
            }
            .to_owned()
        } else {
            let there: Vec<String> = self.spec().latents.keys().map(Bucket::to_string).collect();
            let there = there.join(", ");
            format!(
                "it was prepared for {there}; add the resolution and run `tidemill preprocess` again, which keeps what is encoded"
            )
        };
        Error::Empty { uri: self.location().uri().to_owned(), split: split.name(), bucket, hint }
    }
}
