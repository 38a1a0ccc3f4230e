//! What a stream contains, and how it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bucket::Bucket;
use crate::dataset::split::Split;
use crate::shard::row_group_cache::Cache;
use crate::stream::batch::UnreadableRows;
use crate::stream::order::rank_share::Rank;
use crate::stream::reader::threads::ThreadCounts;
use crate::stream::state::{Phase, SnapshotId, StreamState, Version};

/// What a stream contains, and in which order.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamConfig {
    /// Seed of the order.
    pub seed: u64,
    /// The shuffle window: number of blocks of a dataset and bucket whose rows are shuffled
    /// together. For remote datasets that are not cached, twice as many blocks are in memory.
    pub window: usize,
    /// Training or validation set.
    pub split: Split,
    /// Read only rows of this bucket. The state does not record this.
    pub bucket: Option<Bucket>,
    /// What the batches are made of.
    pub phase: Phase,
}

/// How a stream is read. None of this changes the content of a global batch.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// The rank whose part of each global batch is read.
    pub rank: Rank,
    /// Number of batches to prefetch.
    pub prefetch: usize,
    /// Number of reader threads. 0 means two per core, and at least sixteen if any dataset is
    /// remote.
    pub readers: usize,
    /// What happens to rows that cannot be read.
    pub unreadable: UnreadableRows,
    /// Cache for row groups of remote datasets.
    pub cache: Option<Arc<Cache>>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { rank: Rank::default(), prefetch: 4, readers: 0, unreadable: UnreadableRows::Stop, cache: None }
    }
}

impl ReadOptions {
    pub(super) fn thread_counts(&self, remote: bool) -> ThreadCounts {
        let cores = tidemill_io::available_cores();
        let readers = match self.readers {
            0 if remote => (2 * cores).max(16),
            0 => 2 * cores,
            readers => readers,
        };
        ThreadCounts { readers, gatherers: cores.min(self.prefetch.max(1)), prefetch: self.prefetch }
    }
}

impl StreamConfig {
    pub(super) fn start_state(&self, snapshots: BTreeMap<String, SnapshotId>) -> StreamState {
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
