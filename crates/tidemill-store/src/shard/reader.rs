//! Reads rows of the shards of a split and bucket: the latents file of each unit joined with the files of what
//! conditions its images, text first. Where the row groups are is read from the footers when it is needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bucket::Bucket;
use crate::dataset::column_group::ColumnGroup;
use crate::dataset::reader::Dataset;
use crate::dataset::spec::TensorSpec;
use crate::dataset::split::Split;
use crate::dataset::text_column::TextColumn;
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
    latents: (ColumnGroup, TensorSpec),
    /// The text columns, in order, and then the time ids, if there are any.
    conditions: Vec<(ColumnGroup, TensorSpec)>,
    cache: Option<Arc<Cache>>,
    pool: Arc<BufferPool>,
    indices: Mutex<HashMap<usize, Arc<ShardIndex>>>,
}

/// The row groups of a shard.
#[derive(Debug)]
struct ShardIndex {
    unit: UnitId,
    latents: ShardFile,
    /// In the order of [`ShardReader::conditions`].
    conditions: Vec<ShardFile>,
}

#[derive(Debug)]
struct ShardFile {
    path: String,
    form: TensorSpec,
    blocks: Vec<BlockEntry>,
}

/// A row with its tensors.
#[derive(Debug, Clone)]
pub struct TensorRow {
    pub sample_id: u64,
    pub latents: Tensor,
    /// One for each of [`DatasetSpec::text_columns`](crate::DatasetSpec::text_columns).
    pub text: Vec<Tensor>,
    pub time_ids: Option<Tensor>,
}

impl TensorRow {
    /// Its tensors: latents, text columns, time ids.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.latents].into_iter().chain(&self.text).chain(&self.time_ids)
    }
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
        let text =
            |(column, form): (TextColumn, &TensorSpec)| (ColumnGroup::Text(split, column), form.clone());
        let time_ids =
            spec.has_time_ids.then(|| (ColumnGroup::TimeIds(split, bucket), TensorSpec::time_ids()));
        Self {
            dataset: dataset.clone(),
            latents: (ColumnGroup::Latents(split, bucket), latents),
            conditions: spec.text_columns().map(text).chain(time_ids).collect(),
            cache,
            pool,
            indices: Mutex::default(),
        }
    }

    /// The number of rows of each shard.
    pub fn rows(&self) -> impl Iterator<Item = u64> {
        self.dataset.units().rows(self.latents.0)
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
        if remaining.is_empty() { Ok(read) } else { Err(self.missing_rows_error(&index, &index.latents)) }
    }

    /// Reads rows of a row group. `rows` holds their indices in the row group, ascending.
    fn read_block(&self, index: &ShardIndex, entry: &BlockEntry, rows: &[usize]) -> Result<Vec<TensorRow>> {
        let latents = self.open(index, &index.latents, entry, rows.len())?;
        let joined = index.conditions.iter().map(|file| {
            let find_rows = |entry| {
                let block = self.open(index, file, entry, rows.len())?;
                let at = find_same_rows(latents.row_group(), block.row_group(), rows);
                at.map(|at| read_tensors(&block, file, &at)).transpose()
            };
            let block = file.blocks.iter().find(|block| block.number == entry.number);
            let tensors = block.map(find_rows).transpose()?.flatten();
            tensors.ok_or_else(|| self.missing_rows_error(index, file))
        });
        let mut conditions = joined.map(|tensors| Ok(tensors?.into_iter())).collect::<Result<Vec<_>>>()?;
        let ids = rows.iter().map(|at| latents.row_group().sample_ids[*at]);
        let values = read_tensors(&latents, &index.latents, rows)?;
        let row = |(sample_id, latents)| {
            let mut text: Vec<Tensor> = conditions.iter_mut().filter_map(Iterator::next).collect();
            let time_ids = if self.dataset.spec().has_time_ids { text.pop() } else { None };
            TensorRow { sample_id, latents, text, time_ids }
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
        let ShardFile { path, form, .. } = file;
        let reader = RowGroupReader {
            location: self.dataset.location(),
            unit: index.unit,
            path,
            entry,
            width: form.bytes(),
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
        let lacks = |group: &ColumnGroup| {
            let problem = format!("unit {shard} of its manifest lacks {group}");
            Error::Format { path: self.dataset.location().uri().into(), problem }
        };
        let unit = unit.ok_or_else(|| lacks(&self.latents.0))?;
        let file = |(group, form): &(ColumnGroup, TensorSpec)| -> Result<ShardFile> {
            let footer = units.footer(shard, *group).ok_or_else(|| lacks(group))?;
            let blocks = read_blocks(&footer, self.dataset.location(), unit)?;
            Ok(ShardFile { path: footer.path, form: form.clone(), blocks })
        };
        let conditions = self.conditions.iter().map(file).collect::<Result<_>>()?;
        let index = Arc::new(ShardIndex { unit, latents: file(&self.latents)?, conditions });
        let mut indices = indices();
        if indices.len() == MAX_INDICES {
            indices.clear();
        }
        indices.insert(shard, index.clone());
        Ok(index)
    }

    /// The error for a file that lacks rows which the manifest or the latents have.
    fn missing_rows_error(&self, index: &ShardIndex, file: &ShardFile) -> Error {
        Error::Corrupt {
            path: self.dataset.location().uri_of(&file.path),
            problem: "it lacks rows that the unit has".into(),
            commit: index.unit.commit_key(),
        }
    }
}

/// The index in `other` of each of the given rows of `latents`, or `None` if it lacks one.
fn find_same_rows(latents: &RowGroup, other: &RowGroup, rows: &[usize]) -> Option<Vec<usize>> {
    let find = |at: &usize| other.rows.binary_search(latents.rows.get(*at)?).ok();
    rows.iter().map(find).collect()
}

/// The tensors of some rows, given by their indices in the row group.
fn read_tensors(row_group: &OpenRowGroup<'_>, file: &ShardFile, rows: &[usize]) -> Result<Vec<Tensor>> {
    let dtype = file.form.dtype;
    Ok(row_group.tensors(rows)?.into_iter().map(|stored| Tensor::new(stored, dtype)).collect())
}
