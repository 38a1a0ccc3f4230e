//! The training stream: global batches of datasets' rows in an order that is a pure function of (seed,
//! epoch, snapshots, mix). Blocks are permuted, and rows are shuffled within windows of blocks. Every row comes
//! exactly once an epoch, and batches straddle epochs. Where a stream stands is one small JSON object.
//!
//! What comes when, and who reads it, is worked out by modules that neither read nor wait: [`blocks`] cuts shards into blocks,
//! [`order`] shuffles them, [`mix`] and [`buckets`] say whose turn it is, [`plan`] puts these together to batches, [`share`]
//! deals those out to ranks, and [`state`] is where all of it stands. Then come those that do it: `planner` says what
//! a rank has to read, `threads` read it, and `gather` copies rows into batches.

pub mod order;
pub mod state;

mod batch;
mod batch_stream;
mod config;
mod datasets;
mod reader;

#[cfg(test)]
mod scale_tests;

pub use crate::dataset::layout::Split;
pub use crate::shard::buffer::Buffer;
pub use batch::{Batch, SkippedRows, UnreadableRows};
pub use batch_stream::Stream;
pub use config::{ReadOptions, StreamConfig};
pub use datasets::{Datasets, find_mismatch, roll_back_to, single_dataset, snapshot_ids};
pub use order::mix::MixAmount;
pub use order::rank_share::{Rank, WorldSize};
pub use state::{Phase, SINGLE_DATASET, SnapshotId, StreamState};
