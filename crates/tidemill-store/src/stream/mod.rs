//! The training stream: global batches of rows, in an order that is a pure function of (seed,
//! epoch, snapshots, mix). Blocks are permuted, and rows are shuffled within windows of blocks.
//! Every row comes exactly once per epoch, and batches straddle epochs. Its [state](StreamState) is
//! one small JSON object, so that a run resumes in the middle of an epoch.
//!
//! [`order`] computes which rows are in which batch and which rank reads them. It neither reads nor
//! waits. `reader` plans what a rank must read, reads it in threads, and copies rows into batches.

pub mod order;
pub mod state;

mod batch;
mod batch_stream;
mod config;
mod datasets;
mod reader;

#[cfg(test)]
mod scale_tests;

pub use crate::dataset::split::Split;
pub use crate::shard::buffer_pool::Buffer;
pub use batch::{Batch, SkippedRows, UnreadableRows};
pub use batch_stream::Stream;
pub use config::{ReadOptions, StreamConfig};
pub use datasets::{Datasets, find_mismatch, roll_back_to, single_dataset, snapshot_ids};
pub use order::mix::MixAmount;
pub use order::rank_share::{Rank, WorldSize};
pub use state::{Phase, SINGLE_DATASET, SnapshotId, StreamState};
