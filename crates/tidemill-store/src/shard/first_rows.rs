//! Reads the first rows of a split and bucket into memory.

use crate::bucket::Bucket;
use crate::dataset::reader::Dataset;
use crate::dataset::split::Split;
use crate::error::Result;
use crate::shard::buffer_pool::BufferPool;
use crate::shard::reader::{ShardReader, TensorRow};
use crate::shard::tensor::Tensor;

/// Rows of a split and bucket. Tensors are contiguous, little-endian and row-major.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensors {
    /// Sample ids of the rows.
    pub sample_ids: Vec<u64>,
    /// `latents_R`: n x the shape in [`DatasetSpec::latents`](crate::DatasetSpec::latents), f16.
    pub latents: Vec<u8>,
    /// The columns [`DatasetSpec::text_columns`](crate::DatasetSpec::text_columns): n x the shape of each, f16 or
    /// i32.
    pub text: Vec<Vec<u8>>,
    /// `time_ids_R`: n x `[6]`, i32; empty if the dataset has none.
    pub time_ids: Vec<u8>,
}

impl Dataset {
    /// Reads the first `limit` rows of a split and bucket in the order of the manifest. The result
    /// is always the same.
    ///
    /// # Errors
    /// If there are no rows, or if a file cannot be read or is damaged.
    pub fn read_tensors(&self, split: Split, bucket: Bucket, limit: usize) -> Result<Tensors> {
        let shards = ShardReader::new(self, split, bucket, None, BufferPool::new(2));
        if self.num_rows(split, bucket) == 0 {
            return Err(self.no_rows_error(split, bucket));
        }
        let mut tensors = Tensors::default();
        for (shard, rows) in shards.rows().enumerate() {
            for start in (0..rows).step_by(self.spec().row_group_rows as usize) {
                let left = limit - tensors.sample_ids.len();
                let end = rows.min(start + u64::from(self.spec().row_group_rows));
                let batch: Vec<u64> = (start..end).take(left).collect();
                if batch.is_empty() {
                    return Ok(tensors);
                }
                shards.read(shard, &batch)?.iter().try_for_each(|row| tensors.push(row))?;
            }
        }
        Ok(tensors)
    }
}

impl Tensors {
    fn push(&mut self, row: &TensorRow) -> Result<()> {
        self.sample_ids.push(row.sample_id);
        self.text.resize_with(row.text.len(), Vec::new);
        append(&mut self.latents, &row.latents)?;
        self.text.iter_mut().zip(&row.text).try_for_each(|(values, tensor)| append(values, tensor))?;
        row.time_ids.iter().try_for_each(|tensor| append(&mut self.time_ids, tensor))
    }
}

fn append(values: &mut Vec<u8>, tensor: &Tensor) -> Result<()> {
    let end = values.len();
    values.resize(end + tensor.len(), 0);
    tensor.copy_to(&mut values[end..])
}
