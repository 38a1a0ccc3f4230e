//! Reads rows of the shards of a split and bucket: the latents file of each unit joined with its
//! text file. Where the row groups are is read from the footers when it is needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bucket::Bucket;
use crate::dataset::column_group::ColumnGroup;
use crate::dataset::reader::Dataset;
use crate::dataset::spec::TensorSpec;
use crate::dataset::split::Split;
use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};
use crate::shard::buffer_pool::BufferPool;
use crate::shard::footer::{BlockEntry, read_blocks};
use crate::shard::row_group::{RowGroup, RowGroupReader};
use crate::shard::row_group_cache::Cache;
use crate::shard::tensor::{OpenRowGroup, Tensor};

/// Number of shards whose row groups are kept in memory. When there are more, all are dropped.
const MAX_INDICES: usize = 4096;

/// Reads the shards of a split and bucket. Shard i belongs to unit i of the manifest and may be
/// empty.
#[derive(Debug)]
pub struct ShardReader {
    dataset: Dataset,
    latents: ColumnGroup,
    text: ColumnGroup,
    /// The stored forms of latents and text.
    forms: (TensorSpec, TensorSpec),
    cache: Option<Arc<Cache>>,
    pool: Arc<BufferPool>,
    indices: Mutex<HashMap<usize, Arc<ShardIndex>>>,
}

/// The row groups of a shard.
#[derive(Debug)]
struct ShardIndex {
    unit: UnitId,
    latents: ShardFile,
    text: ShardFile,
}

#[derive(Debug)]
struct ShardFile {
    path: String,
    /// Bytes of a stored tensor.
    width: usize,
    blocks: Vec<BlockEntry>,
}

/// A row with its tensors.
#[derive(Debug, Clone)]
pub struct TensorRow {
    pub sample_id: u64,
    pub latents: Tensor,
    pub text: Tensor,
}

impl ShardReader {
    /// Opens the shards of a dataset. Row groups of remote datasets are kept in the cache if there
    /// is one, and otherwise in memory of the pool.
    pub fn new(
        dataset: &Dataset,
        split: Split,
        bucket: Bucket,
        cache: Option<Arc<Cache>>,
        pool: Arc<BufferPool>,
    ) -> Self {
        let spec = dataset.spec();
        let latents = spec.latents.get(&bucket).cloned().unwrap_or_else(|| TensorSpec::f16([0]));
        Self {
            dataset: dataset.clone(),
            latents: ColumnGroup::Latents(split, bucket),
            text: ColumnGroup::Text(split),
            forms: (latents, spec.text.clone()),
            cache,
            pool,
            indices: Mutex::default(),
        }
    }

    /// The number of rows of each shard.
    pub fn rows(&self) -> impl Iterator<Item = u64> {
        self.dataset.units().rows(self.latents)
    }

    /// Reads rows of a shard. `rows` holds their indices in the shard, ascending.
    ///
    /// # Errors
    /// If a file cannot be read or differs from what was committed.
    pub fn read(&self, shard: usize, rows: &[u64]) -> Result<Vec<TensorRow>> {
        let index = self.index(shard)?;
        let (mut read, mut remaining) = (Vec::with_capacity(rows.len()), rows);
        let mut first = 0;
        for entry in &index.latents.blocks {
            let end = first + u64::from(entry.rows);
            let (wanted, rest) = remaining.split_at(remaining.partition_point(|row| *row < end));
            let at: Vec<usize> = wanted.iter().map(|row| (row - first) as usize).collect();
            if !at.is_empty() {
                read.extend(self.read_block(&index, entry, &at)?);
            }
            (first, remaining) = (end, rest);
        }
        // The files have fewer row groups than the manifest says.
        if remaining.is_empty() { Ok(read) } else { Err(self.missing_text_error(&index)) }
    }

    /// Reads rows of a row group. `rows` holds their indices in the row group, ascending.
    fn read_block(&self, index: &ShardIndex, entry: &BlockEntry, rows: &[usize]) -> Result<Vec<TensorRow>> {
        let text = index.text.blocks.iter().find(|text| text.number == entry.number);
        let text = text.ok_or_else(|| self.missing_text_error(index))?;
        let latents = self.open(index, &index.latents, entry, rows.len())?;
        let text = self.open(index, &index.text, text, rows.len())?;
        let text_at = find_text_rows(latents.row_group(), text.row_group(), rows)
            .ok_or_else(|| self.missing_text_error(index))?;
        let values = latents.tensors(rows)?.into_iter().zip(text.tensors(&text_at)?);
        let ids = rows.iter().map(|at| latents.row_group().sample_ids[*at]);
        let row = |(sample_id, (latents, text))| TensorRow {
            sample_id,
            latents: Tensor::new(latents, self.forms.0.dtype),
            text: Tensor::new(text, self.forms.1.dtype),
        };
        Ok(ids.zip(values).map(row).collect())
    }

    /// Opens a row group, from which `rows` rows are wanted.
    fn open<'a>(
        &'a self,
        index: &ShardIndex,
        file: &'a ShardFile,
        entry: &'a BlockEntry,
        rows: usize,
    ) -> Result<OpenRowGroup<'a>> {
        let ShardFile { path, width, .. } = file;
        let reader = RowGroupReader {
            location: self.dataset.location(),
            unit: index.unit,
            path,
            entry,
            width: *width,
        };
        OpenRowGroup::new(reader, rows, self.cache.as_deref(), &self.pool)
    }

    /// The row groups of a shard, read from the footers of its files.
    fn index(&self, shard: usize) -> Result<Arc<ShardIndex>> {
        let indices = || self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = indices().get(&shard) {
            return Ok(index.clone());
        }
        let units = self.dataset.units();
        let unit = units.id(shard);
        let file = |group, form: &TensorSpec| {
            let (unit, footer) = (unit?, units.footer(shard, group)?);
            let blocks = read_blocks(&footer, self.dataset.location(), unit);
            Some(blocks.map(|blocks| ShardFile { path: footer.path, width: form.bytes(), blocks }))
        };
        let latents = file(self.latents, &self.forms.0).transpose()?;
        let text = file(self.text, &self.forms.1).transpose()?;
        let (Some(unit), Some(latents), Some(text)) = (unit, latents, text) else {
            let problem = format!("unit {shard} of its manifest lacks latents or text");
            return Err(Error::Format { path: self.dataset.location().uri().into(), problem });
        };
        let index = Arc::new(ShardIndex { unit, latents, text });
        let mut indices = indices();
        if indices.len() == MAX_INDICES {
            indices.clear();
        }
        indices.insert(shard, index.clone());
        Ok(index)
    }

    fn missing_text_error(&self, index: &ShardIndex) -> Error {
        Error::Corrupt {
            path: self.dataset.location().uri_of(&index.latents.path),
            problem: "some of its rows have no text".into(),
            commit: index.unit.commit_key(),
        }
    }
}

/// The index in `text` of each of the given rows of `latents`, or `None` if a row has no text.
fn find_text_rows(latents: &RowGroup, text: &RowGroup, rows: &[usize]) -> Option<Vec<usize>> {
    let find = |at: &usize| text.rows.binary_search(latents.rows.get(*at)?).ok();
    rows.iter().map(find).collect()
}
