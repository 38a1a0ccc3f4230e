//! What a stream gives and how it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bucket::Bucket;
use crate::dataset::layout::Split;
use crate::shard::cache::Cache;
use crate::stream::batch::UnreadableRows;
use crate::stream::order::rank_share::Rank;
use crate::stream::reader::threads::ThreadCounts;
use crate::stream::state::{Phase, SnapshotId, StreamState, Version};

/// What a stream gives, and in which order.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamConfig {
    /// Another seed, another order.
    pub seed: u64,
    /// Blocks of a dataset and bucket whose rows are shuffled together. Of datasets that are neither on this machine nor in
    /// its cache, twice as many are in memory.
    pub window: usize,
    /// Training rows or held-out ones.
    pub split: Split,
    /// Only rows of this bucket; a state does not say so.
    pub bucket: Option<Bucket>,
    /// What the batches are made of.
    pub phase: Phase,
}

/// How a stream is read. None of it changes what is in a global batch.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Whose part of each global batch.
    pub rank: Rank,
    /// Batches made ahead.
    pub prefetch: usize,
    /// ReaderThreads that read; 0 means two per core, and at least sixteen if any dataset is not on this machine.
    pub readers: usize,
    /// What becomes of rows that cannot be read.
    pub unreadable: UnreadableRows,
    /// Keeps row groups of datasets that are not on this machine.
    pub cache: Option<Arc<Cache>>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { rank: Rank::default(), prefetch: 4, readers: 0, unreadable: UnreadableRows::Stop, cache: None }
    }
}

impl ReadOptions {
    pub(super) fn numbers(&self, remote: bool) -> ThreadCounts {
        let cores = tidemill_io::cores();
        let readers = match self.readers {
            0 if remote => (2 * cores).max(16),
            0 => 2 * cores,
            readers => readers,
        };
        ThreadCounts { readers, gatherers: cores.min(self.prefetch.max(1)), prefetch: self.prefetch }
    }
}

impl StreamConfig {
    pub(super) fn start(&self, snapshots: BTreeMap<String, SnapshotId>) -> StreamState {
        StreamState {
            version: Version,
            seed: self.seed,
            window: self.window,
            split: self.split,
            datasets: snapshots,
            phase: self.phase.clone(),
            before: BTreeMap::new(),
            batches: 0,
        }
    }
}
