//! The shards of a split and bucket: the commits' files of latents, each joined with its text, in the order of the
//! manifest. Nothing is kept per block; the manifest has it.

use std::ops::Range;
use std::sync::Arc;

use crate::block::{Block, Place};
use crate::bucket::Bucket;
use crate::buffer::Pool;
use crate::cache::Cache;
use crate::commit::{BlockEntry, Commit, FileEntry};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::layout::{Group, Split};
use crate::spec::TensorSpec;
use crate::tensor::{Opened, Tensor};

/// The shards of a split and bucket. Shard i is that of the manifest's commit i, and may be empty.
#[derive(Debug, Clone)]
pub struct Shards {
    dataset: Dataset,
    latents: Group,
    text: Group,
    /// Of a row's latents and text.
    forms: (TensorSpec, TensorSpec),
    cache: Option<Arc<Cache>>,
    pool: Arc<Pool>,
}

/// Rows of a shard that lie in one row group of its latents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub shard: usize,
    /// The row group.
    pub block: usize,
    /// Places of the rows in the row group.
    pub rows: Range<usize>,
}

/// A row.
#[derive(Debug, Clone)]
pub struct Row {
    pub sample_id: u64,
    pub latents: Tensor,
    pub text: Tensor,
}

impl Shards {
    /// Those of a dataset, of which row groups that lie elsewhere are kept in a cache, if there is one, or else in memory of
    /// the pool.
    pub fn new(
        dataset: &Dataset,
        split: Split,
        bucket: Bucket,
        cache: Option<Arc<Cache>>,
        pool: Arc<Pool>,
    ) -> Self {
        let spec = dataset.spec();
        let latents = spec.latents.get(&bucket).cloned().unwrap_or_else(|| TensorSpec::f16([0]));
        Self {
            dataset: dataset.clone(),
            latents: Group::Latents(split, bucket),
            text: Group::Text(split),
            forms: (latents, spec.text.clone()),
            cache,
            pool,
        }
    }

    /// Rows of each.
    pub fn rows(&self) -> impl Iterator<Item = u64> {
        self.dataset.manifest().commits.iter().map(|commit| commit.rows(self.latents))
    }

    /// Where some rows of a shard lie.
    pub fn stretches(&self, shard: usize, rows: &Range<u64>) -> Vec<Stretch> {
        let blocks = self.commit(shard).file(self.latents).map_or(&[][..], |file| &file.blocks);
        let mut stretches = Vec::new();
        let mut before = 0;
        for (block, entry) in blocks.iter().enumerate() {
            let end = before + u64::from(entry.rows);
            let here = rows.start.max(before)..rows.end.min(end);
            if !here.is_empty() {
                let rows = (here.start - before) as usize..(here.end - before) as usize;
                stretches.push(Stretch { shard, block, rows });
            }
            before = end;
        }
        stretches
    }

    /// Rows of a shard's row group, given by their places in it, ascending.
    ///
    /// # Errors
    /// If a file cannot be read or is not what was committed.
    pub fn read(&self, shard: usize, block: usize, rows: &[usize]) -> Result<Vec<Row>> {
        let commit = self.commit(shard);
        let places = self.places(commit, block).ok_or_else(|| self.unjoined(commit))?;
        let latents = Opened::new(places.0, rows.len(), self.cache.as_deref(), &self.pool)?;
        let text = Opened::new(places.1, rows.len(), self.cache.as_deref(), &self.pool)?;
        let text_at = joined(latents.block(), text.block(), rows).ok_or_else(|| self.unjoined(commit))?;
        let values = latents.tensors(rows)?.into_iter().zip(text.tensors(&text_at)?);
        let ids = rows.iter().map(|at| latents.block().sample_ids[*at]);
        let row = |(sample_id, (latents, text))| Row {
            sample_id,
            latents: Tensor::new(latents, self.forms.0.dtype),
            text: Tensor::new(text, self.forms.1.dtype),
        };
        Ok(ids.zip(values).map(row).collect())
    }

    fn commit(&self, shard: usize) -> &Commit {
        &self.dataset.manifest().commits[shard]
    }

    /// The row group of latents and that of text which joins with it.
    fn places<'a>(&'a self, commit: &'a Commit, block: usize) -> Option<(Place<'a>, Place<'a>)> {
        let place = |file: &'a FileEntry, entry: &'a BlockEntry, form: &TensorSpec| Place {
            location: self.dataset.location(),
            unit: &commit.id,
            file,
            entry,
            width: form.bytes(),
        };
        let (latents, text) = (commit.file(self.latents)?, commit.file(self.text)?);
        let entry = latents.blocks.get(block)?;
        let joined = text.blocks.iter().find(|text| text.number == entry.number)?;
        Some((place(latents, entry, &self.forms.0), place(text, joined, &self.forms.1)))
    }

    fn unjoined(&self, commit: &Commit) -> Error {
        Error::Corrupt {
            path: self.dataset.location().uri_of(commit.file(self.latents).map_or("data", |file| &file.path)),
            problem: "some of its rows have no text".into(),
            commit: commit.id.commit_key(),
        }
    }
}

/// For each of some rows of `latents` its place in `text`; `None` if one has no text.
fn joined(latents: &Block, text: &Block, rows: &[usize]) -> Option<Vec<usize>> {
    let place = |at: &usize| text.rows.binary_search(latents.rows.get(*at)?).ok();
    rows.iter().map(place).collect()
}
