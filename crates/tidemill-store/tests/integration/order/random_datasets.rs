//! Random datasets, given as numbers of rows per shard and bucket, and mixes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidemill_store::Bucket;
use tidemill_store::stream::Split;
use tidemill_store::stream::order::batch_plan::{BatchPlan, Indices, PlannedBatch};
use tidemill_store::stream::order::blocks::BlockIndex;
use tidemill_store::stream::order::mix::MixAmount;
use tidemill_store::stream::state::{Phase, SnapshotId, StreamState, Version};

/// Rows of each shard, by dataset and bucket.
#[derive(Debug, Clone)]
pub struct World {
    pub shards: BTreeMap<String, BTreeMap<Bucket, Vec<u64>>>,
    pub block_rows: u32,
}

/// A row and its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub epoch: u64,
    pub shard: usize,
    pub row: u64,
}

impl World {
    pub fn indices(&self) -> Indices {
        let index = |shards: &Vec<u64>| Arc::new(BlockIndex::new(shards.iter().copied(), self.block_rows));
        let buckets =
            |buckets: &BTreeMap<Bucket, Vec<u64>>| buckets.iter().map(|(b, s)| (*b, index(s))).collect();
        self.shards.iter().map(|(name, shards)| (name.clone(), buckets(shards))).collect()
    }

    /// The state at the beginning of a stream.
    pub fn state(&self, seed: u64, window: usize, phase: Phase) -> StreamState {
        let snapshot = SnapshotId { manifest: 1, digest: "d".into() };
        let datasets = self.shards.keys().map(|name| (name.clone(), snapshot.clone())).collect();
        let (version, split, before) = (Version, Split::Train, BTreeMap::new());
        StreamState { version, seed, window, split, datasets, phase, before, batches: 0 }
    }

    /// Rows of a dataset at a resolution.
    pub fn rows(&self, name: &str, resolution: u32) -> u64 {
        let buckets = self.shards[name].iter().filter(|(bucket, _)| bucket.resolution == resolution);
        buckets.flat_map(|(_, shards)| shards).sum()
    }

    /// The rows of batches, by dataset and bucket.
    pub fn sort(&self, plan: &BatchPlan, batches: &[PlannedBatch]) -> BTreeMap<(String, Bucket), Vec<Row>> {
        let indices = self.indices();
        let mut rows: BTreeMap<(String, Bucket), Vec<Row>> = BTreeMap::new();
        for batch in batches {
            for row in &batch.rows {
                let window = &batch.windows[row.window as usize];
                let name = &plan.datasets()[window.dataset];
                let block = window.open.blocks[row.window_row.slot as usize];
                let (shard, row) = indices[name][&batch.bucket].locate(block, row.window_row.row.into());
                let row = Row { epoch: window.open.window.epoch, shard, row };
                rows.entry((name.clone(), batch.bucket)).or_default().push(row);
            }
        }
        rows
    }
}

/// 1 to 4 datasets of 1 to 10,000 unequal shards, in 1 to 3 buckets at resolution 64 and one at
/// 128.
pub fn worlds() -> impl Strategy<Value = World> {
    let shards = prop_oneof![
        8 => prop::collection::vec(0u64..60, 1..20),
        1 => prop::collection::vec(prop_oneof![3 => Just(0u64), 1 => 0u64..4], 1000..=10_000),
        1 => prop::collection::vec(0u64..2000, 1..3),
    ];
    let dataset = prop::collection::vec(shards, 4);
    (prop::collection::vec(dataset, 1..5), 1usize..=3, 1u32..30).prop_map(
        |(datasets, buckets, block_rows)| {
            let names = ["64", "64-32x128", "64-128x32"].map(|name| name.parse().unwrap());
            let dataset = |mut shards: Vec<Vec<u64>>| {
                // Each resolution has at least one row.
                shards[0][0] += 1;
                shards[3][0] += 1;
                let wide: BTreeMap<Bucket, Vec<u64>> =
                    names.into_iter().zip(shards.drain(..buckets)).collect();
                wide.into_iter().chain([(Bucket::square(128), shards.pop().unwrap())]).collect()
            };
            let datasets = datasets.into_iter().map(dataset);
            World { shards: (0..).map(|i| format!("d{i}")).zip(datasets).collect(), block_rows }
        },
    )
}

/// A mix of all datasets.
pub fn mixes(world: &World) -> impl Strategy<Value = BTreeMap<String, MixAmount>> + use<> {
    let names: Vec<String> = world.shards.keys().cloned().collect();
    let proportions = prop::collection::vec((0.01f64..10.0).prop_map(MixAmount::Proportion), names.len());
    let amount =
        prop_oneof![(0.5f64..3.0).prop_map(MixAmount::Repeat), (1u64..3000).prop_map(MixAmount::Count)];
    let amounts = prop::collection::vec(amount, names.len());
    prop_oneof![proportions, amounts].prop_map(move |amounts| names.iter().cloned().zip(amounts).collect())
}

pub fn phase(resolution: u32, global_batch: u64, mix: BTreeMap<String, MixAmount>) -> Phase {
    Phase { resolution, global_batch, mix }
}
