//! A dataset open for reading: what one manifest snapshot says, and nothing else that may lie in its folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tidemill_io::Location;

use crate::bucket::Bucket;
use crate::buffer::Pool;
use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::layout::{Group, MANIFEST, Split};
use crate::manifest::Manifest;
use crate::rows::RowBatches;
use crate::shards::{Row, Shards, Stretch};
use crate::spec::{DatasetSpec, is_dataset};

/// A dataset at one snapshot. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    location: Location,
    empty_caption: Bytes,
    manifest: Manifest,
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

/// Some rows of a split and bucket; the tensors lie one after the other, little-endian, row-major.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensors {
    /// The samples.
    pub sample_ids: Vec<u64>,
    /// `latents_R`: n x the shape in [`DatasetSpec::latents`], f16.
    pub latents: Vec<u8>,
    /// `text`: n x the shape of [`DatasetSpec::text`], f16 or i32.
    pub text: Vec<u8>,
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
        let manifest = Manifest::newest(&location)?;
        let manifest = manifest.ok_or_else(|| Error::NoManifest { uri: location.uri().into() })?;
        Self::new(location, manifest)
    }

    pub(crate) fn new(location: Location, manifest: Manifest) -> Result<Self> {
        if let Some((commit, problem)) = manifest.commits.iter().find_map(|c| Some((c, c.problem()?))) {
            let path = location.uri_of(&format!("{MANIFEST}/{}.parquet", manifest.number));
            return Err(Error::Format {
                path,
                problem: format!("unit {} does not add up: {problem}", commit.id),
            });
        }
        let empty_caption = manifest.header.empty_caption(&location)?;
        Ok(Self { inner: Arc::new(Inner { location, empty_caption, manifest }) })
    }

    /// The same dataset at another snapshot.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn at(&self, number: u64) -> Result<Self> {
        if number == self.manifest().number {
            return Ok(self.clone());
        }
        let location = self.location().clone();
        let manifest = Manifest::read(&location, number)?;
        Self::new(location, manifest)
    }

    /// What all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.inner.manifest.header.spec
    }

    /// Digest of what shaped the tensors: models and settings, not the rows there are.
    pub fn digest(&self) -> String {
        self.spec().digest()
    }

    /// The empty caption, as readers give a row of `text`.
    pub fn empty_caption(&self) -> &[u8] {
        &self.inner.empty_caption
    }

    /// The snapshot.
    pub fn manifest(&self) -> &Manifest {
        &self.inner.manifest
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
        self.manifest().commits.iter().map(|commit| commit.rows(Group::Latents(split, bucket))).sum()
    }

    /// What the dataset holds.
    pub fn totals(&self) -> Totals {
        let commits = &self.manifest().commits;
        let mut rows = Counts::default();
        commits.iter().for_each(|commit| rows.add(&commit.counts));
        let by_bucket = |split| {
            let buckets = self.spec().latents.keys();
            buckets.map(|bucket| (*bucket, self.rows(split, *bucket))).collect::<BTreeMap<_, _>>()
        };
        let files = commits.iter().flat_map(|commit| &commit.files);
        Totals {
            units: commits.len() as u64,
            files: files.clone().count() as u64,
            bytes: files.map(|file| file.bytes).sum(),
            rows,
            training: by_bucket(Split::Train),
            validation: by_bucket(Split::Validation),
        }
    }

    /// The rows read, with what became of each, unit by unit in the order of the manifest. Of the columns
    /// only those named are read, or all if none is named.
    pub fn read_rows(&self, columns: &[&str]) -> RowBatches {
        RowBatches::new(self.clone(), columns)
    }

    /// The first `limit` rows of a split and bucket, in the order of the manifest: always the same.
    ///
    /// # Errors
    /// If there are none, or a file cannot be read or is damaged.
    pub fn tensors(&self, split: Split, bucket: Bucket, limit: usize) -> Result<Tensors> {
        let shards = Shards::new(self, split, bucket, None, Pool::new(2));
        if self.rows(split, bucket) == 0 {
            return Err(self.empty(split, bucket));
        }
        let mut tensors = Tensors::default();
        for (shard, rows) in shards.rows().enumerate() {
            for Stretch { block, rows, .. } in shards.stretches(shard, &(0..rows)) {
                let left = limit - tensors.sample_ids.len();
                let rows: Vec<usize> = rows.take(left).collect();
                if rows.is_empty() {
                    return Ok(tensors);
                }
                shards.read(shard, block, &rows)?.iter().try_for_each(|row| tensors.push(row))?;
            }
        }
        Ok(tensors)
    }

    /// Why there are no rows of a split and bucket.
    pub(crate) fn empty(&self, split: Split, bucket: Bucket) -> Error {
        let hint = if self.spec().latents.contains_key(&bucket) {
            match split {
                Split::Train => "see `tidemill inspect` for why rows were rejected",
                Split::Validation => "set [validation] share and preprocess into another output",
            }
            .to_owned()
        } else {
            let there: Vec<String> = self.spec().latents.keys().map(Bucket::to_string).collect();
            let there = there.join(", ");
            format!("it was prepared for {there}; add the resolution and preprocess into another output")
        };
        Error::Empty { uri: self.location().uri().to_owned(), split: split.name(), bucket, hint }
    }
}

impl Tensors {
    fn push(&mut self, row: &Row) -> Result<()> {
        self.sample_ids.push(row.sample_id);
        for (values, tensor) in [(&mut self.latents, &row.latents), (&mut self.text, &row.text)] {
            let end = values.len();
            values.resize(end + tensor.len(), 0);
            tensor.copy_to(&mut values[end..])?;
        }
        Ok(())
    }
}
