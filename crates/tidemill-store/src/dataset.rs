//! A dataset open for reading: what one manifest snapshot says, and nothing else that may lie in its folder.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tidemill_io::Location;

use crate::block::{Block, Joined};
use crate::bucket::Bucket;
use crate::commit::Commit;
use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::layout::{Group, MANIFEST, Split};
use crate::manifest::Manifest;
use crate::rows::RowBatches;
use crate::spec::{DatasetSpec, TensorSpec, is_dataset};
use crate::stream::blocks::Piece;

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

/// Some rows of a split and bucket; the tensors lie one after the other, f16 little-endian, row-major.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensors {
    /// The samples.
    pub sample_ids: Vec<u64>,
    /// `latents_R`: n x the shape in [`DatasetSpec::latents`].
    pub latents: Vec<u8>,
    /// `text`: n x the shape of [`DatasetSpec::text`].
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

    /// The embedding of the empty caption, in the form of a row of `text`.
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

    /// The bucket of a resolution that has just one.
    ///
    /// # Errors
    /// [`Error::Config`] if there are several, whose rows cannot share a batch; [`Error::Empty`] if there is none.
    pub fn only_bucket(&self, resolution: u32) -> Result<Bucket> {
        match self.buckets(resolution)[..] {
            [bucket] => Ok(bucket),
            [] => Err(self.empty(Split::Train, Bucket::square(resolution))),
            ref several => Err(Error::Config {
                key: "resolution",
                problem: format!(
                    "the dataset {} has {} buckets at {resolution}, and a training stream cannot mix buckets yet; \
                     prepare it with crop = \"center\" or \"random\" into another output",
                    self.location().uri(),
                    several.len()
                ),
            }),
        }
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
        let blocks = Blocks::new(self, split, bucket)?;
        let mut tensors = Tensors::default();
        for block in 0..blocks.len() {
            let block = blocks.read(block)?;
            let rows = block.len().min(limit - tensors.sample_ids.len());
            (0..rows).for_each(|i| tensors.push(block.row(i)));
            if tensors.sample_ids.len() == limit {
                break;
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
    /// Room for `rows` rows of so many bytes of latents and text.
    pub(crate) fn with_capacity(rows: usize, (latents, text): (usize, usize)) -> Self {
        Self {
            sample_ids: Vec::with_capacity(rows),
            latents: Vec::with_capacity(rows * latents),
            text: Vec::with_capacity(rows * text),
        }
    }

    pub(crate) fn push(&mut self, (sample_id, latents, text): (u64, &[u8], &[u8])) {
        self.sample_ids.push(sample_id);
        self.latents.extend_from_slice(latents);
        self.text.extend_from_slice(text);
    }
}

/// The blocks of a split and bucket, in the order of the manifest.
#[derive(Debug)]
pub(crate) struct Blocks {
    dataset: Dataset,
    split: Split,
    bucket: Bucket,
    /// Index of the commit, and of the block in its file of latents.
    places: Vec<(u32, u32)>,
    /// Rows before each block, and of all.
    rows_before: Vec<u64>,
    /// Blocks before each commit's, and all.
    blocks_before: Vec<usize>,
}

impl Blocks {
    pub fn new(dataset: &Dataset, split: Split, bucket: Bucket) -> Result<Self> {
        let (mut places, mut rows_before, mut blocks_before) = (Vec::new(), vec![0], vec![0]);
        let mut rows = 0;
        for (commit, i) in dataset.manifest().commits.iter().zip(0..) {
            let blocks = commit.file(Group::Latents(split, bucket)).map_or(&[][..], |file| &file.blocks);
            places.extend((0..blocks.len() as u32).map(|block| (i, block)));
            rows_before.extend(blocks.iter().map(|block| {
                rows += u64::from(block.rows);
                rows
            }));
            blocks_before.push(places.len());
        }
        let blocks = Self { dataset: dataset.clone(), split, bucket, places, rows_before, blocks_before };
        if rows == 0 { Err(dataset.empty(split, bucket)) } else { Ok(blocks) }
    }

    /// Rows of each commit, the shards of the bucket.
    pub fn shard_rows(&self) -> impl Iterator<Item = u64> {
        self.blocks_before.windows(2).map(|blocks| self.rows_before[blocks[1]] - self.rows_before[blocks[0]])
    }

    /// The blocks that have rows of a shard's piece, with the rows that each has of it.
    pub fn holding(&self, piece: &Piece) -> impl Iterator<Item = (usize, Range<usize>)> {
        let start = self.rows_before[self.blocks_before[piece.shard]];
        let rows = start + piece.rows.start..start + piece.rows.end;
        let first = self.rows_before.partition_point(|before| *before <= rows.start) - 1;
        let blocks = first..self.rows_before.partition_point(|before| *before < rows.end);
        blocks.map(move |block| {
            let (before, end) = (self.rows_before[block], self.rows_before[block + 1].min(rows.end));
            (block, (rows.start.max(before) - before) as usize..(end - before) as usize)
        })
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Bytes of a row's latents and text.
    pub fn row_bytes(&self) -> (usize, usize) {
        let spec = self.dataset.spec();
        (spec.latents.get(&self.bucket).map_or(0, TensorSpec::bytes), spec.text.bytes())
    }

    /// Reads block `i` and the text that belongs to it.
    pub fn read(&self, i: usize) -> Result<Joined> {
        let (commit, block) = self.places[i];
        let commit = &self.dataset.manifest().commits[commit as usize];
        let group = Group::Latents(self.split, self.bucket);
        let latents = commit.file(group).and_then(|file| Some((file, file.blocks.get(block as usize)?)));
        let text = commit.file(Group::Text(self.split)).and_then(|file| {
            let number = latents?.1.number;
            Some((file, file.blocks.iter().find(|block| block.number == number)?))
        });
        let (Some(latents), Some(text)) = (latents, text) else {
            return Err(self.unjoined(commit));
        };
        let (latents_bytes, text_bytes) = self.row_bytes();
        let read =
            |(file, entry), width| Block::read(self.dataset.location(), &commit.id, file, entry, width);
        let joined = Joined::new(read(latents, latents_bytes)?, read(text, text_bytes)?);
        joined.ok_or_else(|| self.unjoined(commit))
    }

    fn unjoined(&self, commit: &Commit) -> Error {
        let group = Group::Latents(self.split, self.bucket);
        Error::Corrupt {
            path: self.dataset.location().uri_of(commit.file(group).map_or("data", |file| &file.path)),
            problem: "some of its rows have no text".into(),
            commit: commit.id.commit_key(),
        }
    }
}
