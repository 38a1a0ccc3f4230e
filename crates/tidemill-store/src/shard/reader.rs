//! The shards of a split and bucket: the units' files of latents, each joined with its text, in the order of the
//! manifest. Where their row groups are is asked of the files when it is needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bucket::Bucket;
use crate::dataset::layout::{Group, Split};
use crate::dataset::reader::Dataset;
use crate::dataset::spec::TensorSpec;
use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};
use crate::shard::buffer::Pool;
use crate::shard::cache::Cache;
use crate::shard::footer::{BlockEntry, read_blocks};
use crate::shard::row_group::{Block, Place};
use crate::shard::tensor::{Opened, Tensor};

/// Shards whose row groups are remembered; when there are more, all are forgotten.
const REMEMBERED: usize = 4096;

/// The shards of a split and bucket. Shard i is that of the manifest's unit i, and may be empty.
#[derive(Debug)]
pub struct Shards {
    dataset: Dataset,
    latents: Group,
    text: Group,
    /// Of a row's latents and text.
    forms: (TensorSpec, TensorSpec),
    cache: Option<Arc<Cache>>,
    pool: Arc<Pool>,
    indices: Mutex<HashMap<usize, Arc<Index>>>,
}

/// The row groups of a shard.
#[derive(Debug)]
struct Index {
    unit: UnitId,
    latents: File,
    text: File,
}

#[derive(Debug)]
struct File {
    path: String,
    /// Bytes of a tensor.
    width: usize,
    blocks: Vec<BlockEntry>,
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
            indices: Mutex::default(),
        }
    }

    /// Rows of each.
    pub fn rows(&self) -> impl Iterator<Item = u64> {
        self.dataset.units().rows(self.latents)
    }

    /// Rows of a shard, given by their places in it, ascending.
    ///
    /// # Errors
    /// If a file cannot be read or is not what was committed.
    pub fn read(&self, shard: usize, rows: &[u64]) -> Result<Vec<Row>> {
        let index = self.index(shard)?;
        let (mut read, mut left) = (Vec::with_capacity(rows.len()), rows);
        let mut first = 0;
        for entry in &index.latents.blocks {
            let end = first + u64::from(entry.rows);
            let (here, rest) = left.split_at(left.partition_point(|row| *row < end));
            let at: Vec<usize> = here.iter().map(|row| (row - first) as usize).collect();
            if !at.is_empty() {
                read.extend(self.read_block(&index, entry, &at)?);
            }
            (first, left) = (end, rest);
        }
        // Fewer row groups than the manifest says.
        if left.is_empty() { Ok(read) } else { Err(self.unjoined(&index)) }
    }

    /// Rows of a row group, given by their places in it, ascending.
    fn read_block(&self, index: &Index, entry: &BlockEntry, rows: &[usize]) -> Result<Vec<Row>> {
        let text = index.text.blocks.iter().find(|text| text.number == entry.number);
        let text = text.ok_or_else(|| self.unjoined(index))?;
        let latents = self.open(index, &index.latents, entry, rows.len())?;
        let text = self.open(index, &index.text, text, rows.len())?;
        let text_at = joined(latents.block(), text.block(), rows).ok_or_else(|| self.unjoined(index))?;
        let values = latents.tensors(rows)?.into_iter().zip(text.tensors(&text_at)?);
        let ids = rows.iter().map(|at| latents.block().sample_ids[*at]);
        let row = |(sample_id, (latents, text))| Row {
            sample_id,
            latents: Tensor::new(latents, self.forms.0.dtype),
            text: Tensor::new(text, self.forms.1.dtype),
        };
        Ok(ids.zip(values).map(row).collect())
    }

    /// A row group of which so many rows are wanted.
    fn open<'a>(
        &'a self,
        index: &Index,
        file: &'a File,
        entry: &'a BlockEntry,
        rows: usize,
    ) -> Result<Opened<'a>> {
        let File { path, width, .. } = file;
        let place = Place { location: self.dataset.location(), unit: index.unit, path, entry, width: *width };
        Opened::new(place, rows, self.cache.as_deref(), &self.pool)
    }

    /// The row groups of a shard, which its files say.
    fn index(&self, shard: usize) -> Result<Arc<Index>> {
        let indices = || self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = indices().get(&shard) {
            return Ok(index.clone());
        }
        let units = self.dataset.units();
        let unit = units.id(shard);
        let file = |group, form: &TensorSpec| {
            let (unit, footer) = (unit?, units.footer(shard, group)?);
            let blocks = read_blocks(&footer, self.dataset.location(), unit);
            Some(blocks.map(|blocks| File { path: footer.path, width: form.bytes(), blocks }))
        };
        let latents = file(self.latents, &self.forms.0).transpose()?;
        let text = file(self.text, &self.forms.1).transpose()?;
        let (Some(unit), Some(latents), Some(text)) = (unit, latents, text) else {
            let problem = format!("unit {shard} of its manifest lacks latents or text");
            return Err(Error::Format { path: self.dataset.location().uri().into(), problem });
        };
        let index = Arc::new(Index { unit, latents, text });
        let mut indices = indices();
        if indices.len() == REMEMBERED {
            indices.clear();
        }
        indices.insert(shard, index.clone());
        Ok(index)
    }

    fn unjoined(&self, index: &Index) -> Error {
        Error::Corrupt {
            path: self.dataset.location().uri_of(&index.latents.path),
            problem: "some of its rows have no text".into(),
            commit: index.unit.commit_key(),
        }
    }
}

/// For each of some rows of `latents` its place in `text`; `None` if one has no text.
fn joined(latents: &Block, text: &Block, rows: &[usize]) -> Option<Vec<usize>> {
    let place = |at: &usize| text.rows.binary_search(latents.rows.get(*at)?).ok();
    rows.iter().map(place).collect()
}
