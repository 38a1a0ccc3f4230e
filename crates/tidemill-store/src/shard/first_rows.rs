//! Reads the first rows of a split and bucket into memory.

use crate::bucket::Bucket;
use crate::dataset::reader::Dataset;
use crate::dataset::split::Split;
use crate::error::Result;
use crate::shard::buffer_pool::BufferPool;
use crate::shard::reader::{ShardReader, TensorRow};

/// Rows of a split and bucket. Tensors are contiguous, little-endian and row-major.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensors {
    /// Sample ids of the rows.
    pub sample_ids: Vec<u64>,
    /// `latents_R`: n x the shape in [`DatasetSpec::latents`](crate::DatasetSpec::latents), f16.
    pub latents: Vec<u8>,
    /// `text`: n x the shape of [`DatasetSpec::text`](crate::DatasetSpec::text), f16 or i32.
    pub text: Vec<u8>,
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
        for (values, tensor) in [(&mut self.latents, &row.latents), (&mut self.text, &row.text)] {
            let end = values.len();
            values.resize(end + tensor.len(), 0);
            tensor.copy_to(&mut values[end..])?;
        }
        Ok(())
    }
}
