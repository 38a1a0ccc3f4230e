//! A dataset open for reading: what one manifest snapshot says, and nothing else that may lie in its folder.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use tidemill_io::Location;

use crate::bucket::Bucket;
use crate::dataset::header::{Header, is_dataset};
use crate::dataset::layout::{Group, Split};
use crate::dataset::manifest::{Manifest, key_of, unreadable};
use crate::dataset::manifest_file::of_store;
use crate::dataset::row_counts::Counts;
use crate::dataset::spec::DatasetSpec;
use crate::dataset::unit_index::{Snapshot, Units};
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
    units: Units,
    /// All that the snapshot says, once it has been asked for.
    manifest: OnceLock<Manifest>,
}

/// What a dataset holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Units.
    pub units: u64,
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// What became of the rows read.
    pub rows: Counts,
    /// Training rows by bucket.
    pub training: BTreeMap<Bucket, u64>,
    /// Held-out rows by bucket.
    pub validation: BTreeMap<Bucket, u64>,
}

impl Dataset {
    /// Opens the newest snapshot of the dataset at `uri`.
    ///
    /// # Errors
    /// [`Error::NoDataset`], [`Error::NoManifest`], or [`Error::Format`] if what is there cannot be read.
    pub fn open(uri: &str) -> Result<Self> {
        let location = Location::open(uri)?;
        if !is_dataset(&location)? {
            return Err(Error::NoDataset { uri: location.uri().into() });
        }
        let newest = Manifest::numbers(&location)?.last().copied();
        let number = newest.ok_or_else(|| Error::NoManifest { uri: location.uri().into() })?;
        Self::read(location, number)
    }

    fn read(location: Location, number: u64) -> Result<Self> {
        let key = key_of(number);
        let snapshot = Snapshot::read(&location, &key);
        let snapshot = snapshot.map_err(|problem| match of_store(problem) {
            Ok(failure) => failure.into(),
            Err(problem) => unreadable(&location, &key, &*problem),
        })?;
        Self::new(location, number, snapshot)
    }

    fn new(location: Location, number: u64, snapshot: Snapshot) -> Result<Self> {
        let Snapshot { header, digest, units } = snapshot;
        let empty_caption = header.empty_caption(&location)?;
        let manifest = OnceLock::new();
        Ok(Self {
            inner: Arc::new(Inner { location, empty_caption, number, header, digest, units, manifest }),
        })
    }

    /// A dataset that no snapshot says yet.
    pub(crate) fn preview(location: Location, manifest: Manifest) -> Result<Self> {
        let (header, digest) = (manifest.header.clone(), manifest.digest());
        let units = Units::of(&manifest.commits);
        let dataset = Self::new(location, manifest.number, Snapshot { header, digest, units })?;
        dataset.inner.manifest.get_or_init(|| manifest);
        Ok(dataset)
    }

    /// The same dataset at another snapshot.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn at(&self, number: u64) -> Result<Self> {
        if number == self.number() {
            return Ok(self.clone());
        }
        Self::read(self.location().clone(), number)
    }

    /// What all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.inner.header.spec
    }

    /// Digest of what shaped the tensors: models and settings, not the rows there are.
    pub fn digest(&self) -> String {
        self.spec().digest()
    }

    /// The empty caption, as readers give a row of `text`.
    pub fn empty_caption(&self) -> &[u8] {
        &self.inner.empty_caption
    }

    /// The number of the snapshot.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// As [`Manifest::digest`]: of the rows there are.
    pub fn manifest_digest(&self) -> &str {
        &self.inner.digest
    }

    /// The snapshot, which is read when it is first asked for. Streams do without.
    ///
    /// # Errors
    /// If it cannot be read, or does not add up.
    pub fn manifest(&self) -> Result<&Manifest> {
        if let Some(manifest) = self.inner.manifest.get() {
            return Ok(manifest);
        }
        let manifest = Manifest::read(self.location(), self.number())?;
        if let Some((commit, problem)) = manifest.commits.iter().find_map(|c| Some((c, c.problem()?))) {
            return Err(Error::Format {
                path: self.location().uri_of(&key_of(self.number())),
                problem: format!("unit {} does not add up: {problem}", commit.id),
            });
        }
        Ok(self.inner.manifest.get_or_init(|| manifest))
    }

    /// The snapshot's units, in its order.
    pub(crate) fn units(&self) -> &Units {
        &self.inner.units
    }

    /// Where the dataset lies.
    pub fn location(&self) -> &Location {
        &self.inner.location
    }

    /// The buckets of a resolution, whether they have rows or not; none if the dataset was not prepared for it.
    pub fn buckets(&self, resolution: u32) -> Vec<Bucket> {
        let buckets = self.spec().latents.keys();
        buckets.copied().filter(|bucket| bucket.resolution == resolution).collect()
    }

    /// The buckets of a resolution that have rows.
    ///
    /// # Errors
    /// [`Error::Empty`] if none has.
    pub fn buckets_with_rows(&self, split: Split, resolution: u32) -> Result<Vec<Bucket>> {
        let buckets = self.buckets(resolution);
        let with_rows: Vec<Bucket> =
            buckets.iter().copied().filter(|bucket| self.rows(split, *bucket) > 0).collect();
        if with_rows.is_empty() {
            let bucket = buckets.first().copied().unwrap_or(Bucket::square(resolution));
            return Err(self.empty(split, bucket));
        }
        Ok(with_rows)
    }

    /// Rows of a split and bucket.
    pub fn rows(&self, split: Split, bucket: Bucket) -> u64 {
        self.units().rows(Group::Latents(split, bucket)).sum()
    }

    /// What the dataset holds.
    ///
    /// # Errors
    /// As [`manifest`](Self::manifest).
    pub fn totals(&self) -> Result<Totals> {
        let commits = &self.manifest()?.commits;
        let mut rows = Counts::default();
        commits.iter().for_each(|commit| rows.add(&commit.counts));
        let by_bucket = |split| {
            let buckets = self.spec().latents.keys();
            buckets.map(|bucket| (*bucket, self.rows(split, *bucket))).collect::<BTreeMap<_, _>>()
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

    /// Why there are no rows of a split and bucket.
    pub(crate) fn empty(&self, split: Split, bucket: Bucket) -> Error {
        let hint = if self.spec().latents.contains_key(&bucket) {
            match split {
                Split::Train => "see `tidemill inspect` for why rows were rejected",
                Split::Validation => {
                    "it was made without; set [validation] share and run `tidemill preprocess` again, which copies what is encoded"
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
