//! The first rows of a split and bucket, in memory.

use crate::bucket::Bucket;
use crate::dataset::layout::Split;
use crate::dataset::reader::Dataset;
use crate::error::Result;
use crate::shard::buffer::Pool;
use crate::shard::reader::{Row, Shards};

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
            for start in (0..rows).step_by(self.spec().row_group_rows as usize) {
                let left = limit - tensors.sample_ids.len();
                let end = rows.min(start + u64::from(self.spec().row_group_rows));
                let some: Vec<u64> = (start..end).take(left).collect();
                if some.is_empty() {
                    return Ok(tensors);
                }
                shards.read(shard, &some)?.iter().try_for_each(|row| tensors.push(row))?;
            }
        }
        Ok(tensors)
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
