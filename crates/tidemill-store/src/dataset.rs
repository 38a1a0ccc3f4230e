//! A dataset open for reading: what `dataset.json` and one manifest snapshot say, and nothing else that may
//! lie in its folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tidemill_io::Location;

use crate::block::{Block, Joined};
use crate::commit::{Commit, Counts};
use crate::error::{Error, Result};
use crate::layout::{Group, MANIFEST, Split};
use crate::manifest::Manifest;
use crate::rows::RowBatches;
use crate::spec::{DatasetSpec, Header, TensorSpec};

/// A dataset at one snapshot. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    location: Location,
    header: Header,
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
    /// Training rows by resolution.
    pub training: BTreeMap<u32, u64>,
    /// Held-out rows by resolution.
    pub validation: BTreeMap<u32, u64>,
}

/// Some rows of a split at a resolution; the tensors lie one after the other, f16 little-endian, row-major.
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
        let header = Header::open(&location)?;
        let manifest = Manifest::newest(&location)?;
        let manifest = manifest.ok_or_else(|| Error::NoManifest { uri: location.uri().into() })?;
        Self::new(location, header, manifest)
    }

    fn new(location: Location, header: Header, manifest: Manifest) -> Result<Self> {
        if let Some((commit, problem)) = manifest.commits.iter().find_map(|c| Some((c, c.problem()?))) {
            let path = location.uri_of(&format!("{MANIFEST}/{}.parquet", manifest.number));
            return Err(Error::Format {
                path,
                problem: format!("unit {} does not add up: {problem}", commit.id),
            });
        }
        let empty_caption = header.empty_caption(&location)?;
        Ok(Self { inner: Arc::new(Inner { location, header, empty_caption, manifest }) })
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
        Self::new(location, self.inner.header.clone(), manifest)
    }

    /// What all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.inner.header.spec
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

    /// Rows of a split with latents at a resolution.
    pub fn rows(&self, split: Split, resolution: u32) -> u64 {
        self.manifest().commits.iter().map(|commit| commit.rows(Group::Latents(split, resolution))).sum()
    }

    /// What the dataset holds.
    pub fn totals(&self) -> Totals {
        let commits = &self.manifest().commits;
        let mut rows = Counts::default();
        commits.iter().for_each(|commit| rows.add(&commit.counts));
        let by_resolution = |split| {
            self.spec().latents.keys().map(|r| (*r, self.rows(split, *r))).collect::<BTreeMap<_, _>>()
        };
        let files = commits.iter().flat_map(|commit| &commit.files);
        Totals {
            units: commits.len() as u64,
            files: files.clone().count() as u64,
            bytes: files.map(|file| file.bytes).sum(),
            rows,
            training: by_resolution(Split::Train),
            validation: by_resolution(Split::Validation),
        }
    }

    /// The rows read, with what became of each, unit by unit in the order of the manifest. Of the columns
    /// only those named are read, or all if none is named.
    pub fn read_rows(&self, columns: &[&str]) -> RowBatches {
        RowBatches::new(self.clone(), columns)
    }

    /// The first `limit` rows of a split at a resolution, in the order of the manifest: always the same.
    ///
    /// # Errors
    /// If there are none, or a file cannot be read or is damaged.
    pub fn tensors(&self, split: Split, resolution: u32, limit: usize) -> Result<Tensors> {
        let blocks = Blocks::new(self, split, resolution)?;
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

/// The blocks of a split at a resolution, in the order of the manifest.
#[derive(Debug)]
pub(crate) struct Blocks {
    dataset: Dataset,
    split: Split,
    resolution: u32,
    /// Index of the commit, and of the block in its file of latents.
    places: Vec<(u32, u32)>,
    rows: Vec<u32>,
}

impl Blocks {
    pub fn new(dataset: &Dataset, split: Split, resolution: u32) -> Result<Self> {
        let (mut places, mut rows) = (Vec::new(), Vec::new());
        for (commit, i) in dataset.manifest().commits.iter().zip(0..) {
            let blocks = commit.file(Group::Latents(split, resolution)).map_or(&[][..], |file| &file.blocks);
            places.extend((0..blocks.len() as u32).map(|block| (i, block)));
            rows.extend(blocks.iter().map(|block| block.rows));
        }
        let blocks = Self { dataset: dataset.clone(), split, resolution, places, rows };
        if blocks.places.is_empty() { Err(blocks.empty()) } else { Ok(blocks) }
    }

    /// Rows of each block.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Bytes of a row's latents and text.
    pub fn row_bytes(&self) -> (usize, usize) {
        let spec = self.dataset.spec();
        (spec.latents.get(&self.resolution).map_or(0, TensorSpec::bytes), spec.text.bytes())
    }

    /// Reads block `i` and the text that belongs to it.
    pub fn read(&self, i: usize) -> Result<Joined> {
        let (commit, block) = self.places[i];
        let commit = &self.dataset.manifest().commits[commit as usize];
        let group = Group::Latents(self.split, self.resolution);
        let latents = commit.file(group).and_then(|file| Some((file, file.blocks.get(block as usize)?)));
        let text = commit.file(Group::Text(self.split)).and_then(|file| {
            let number = latents?.1.number;
            Some((file, file.blocks.iter().find(|block| block.number == number)?))
        });
        let (Some(latents), Some(text)) = (latents, text) else {
            return Err(self.unjoined(commit));
        };
        let (latents_bytes, text_bytes) = self.row_bytes();
        let read = |(file, entry), width| Block::read(self.dataset.location(), commit, file, entry, width);
        let joined = Joined::new(read(latents, latents_bytes)?, read(text, text_bytes)?);
        joined.ok_or_else(|| self.unjoined(commit))
    }

    fn unjoined(&self, commit: &Commit) -> Error {
        let group = Group::Latents(self.split, self.resolution);
        Error::Corrupt {
            path: self.dataset.location().uri_of(commit.file(group).map_or("data", |file| &file.path)),
            problem: "some of its rows have no text".into(),
            commit: commit.id.commit_key(),
        }
    }

    fn empty(&self) -> Error {
        let there: Vec<String> = self.dataset.spec().latents.keys().map(u32::to_string).collect();
        let hint = if self.dataset.spec().latents.contains_key(&self.resolution) {
            match self.split {
                Split::Train => "see `tidemill inspect` for why rows were rejected",
                Split::Validation => "set [validation] share and preprocess into another output",
            }
            .to_owned()
        } else {
            format!(
                "it was prepared for {}; add the resolution and preprocess into another output",
                there.join(", ")
            )
        };
        let uri = self.dataset.location().uri().to_owned();
        Error::Empty { uri, split: self.split.name(), resolution: self.resolution, hint }
    }
}
