//! A batch of the stream, and the policy for rows that cannot be read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::shard::buffer_pool::Buffer;

/// The n rows of a rank in a global batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number of the batch in its phase, from 0.
    pub number: u64,
    /// The size of all images of the batch.
    pub bucket: Bucket,
    /// Positions of the rows in the global batch, ascending.
    pub positions: Vec<u32>,
    /// Sample ids of the rows.
    pub sample_ids: Vec<u64>,
    /// The epoch of each row in its dataset, from 0.
    pub epochs: Vec<u32>,
    /// Unscaled latents, n x the shape in [`crate::DatasetSpec::latents`], f16 little-endian,
    /// row-major.
    pub latents: Buffer,
    /// The columns [`crate::DatasetSpec::text_columns`], in order: n x the shape of each, f16 or i32 little-endian,
    /// row-major.
    pub text: Vec<Buffer>,
    /// The column `time_ids_R`, n x `[6]`, i32 little-endian; `None` if the dataset has none.
    pub time_ids: Option<Buffer>,
}

/// What happens to rows that cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnreadableRows {
    /// The stream ends with an error that names the file.
    #[default]
    Stop,
    /// The batch is made without them, and they are counted.
    Skip,
}

/// Number of rows left out because they could not be read, by error message.
pub type SkippedRows = BTreeMap<String, u64>;
