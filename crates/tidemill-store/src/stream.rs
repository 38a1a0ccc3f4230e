//! The training stream: global batches of a dataset's rows in an order that is a pure function of (seed,
//! epoch, snapshot). Blocks are permuted, and rows are shuffled within windows of blocks. Every row comes
//! exactly once an epoch, and batches straddle epochs. Where a stream stands is one small JSON object.
//!
//! What comes when, and who reads it, is worked out by modules that neither read nor wait: [`blocks`] cuts shards into blocks,
//! [`order`] shuffles them, [`mix`] and [`buckets`] say whose turn it is, [`plan`] puts these together to batches, [`share`]
//! deals those out to nodes and ranks, and [`state`] is where all of it stands.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use self::blocks::BlockIndex;
use self::mix::Amount;
use self::plan::{Indices, Plan, Standing};
use self::reader::Reader;
pub use self::state::StreamState;
use self::state::{Phase, Snapshot, Version};
use crate::dataset::{Blocks, Dataset};
use crate::error::{Error, Result};
pub use crate::layout::Split;

pub mod blocks;
pub mod buckets;
pub mod interleave;
pub mod mix;
pub mod order;
pub mod permutation;
pub mod plan;
pub mod share;
pub mod state;

mod reader;

/// Batches read ahead, unless chosen otherwise.
const PREFETCH: usize = 4;

/// The name of a stream's only dataset.
const ONLY: &str = "dataset";

/// What a stream gives, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Another seed, another order.
    pub seed: u64,
    /// The latents' resolution in pixels, which must have just one bucket in the dataset.
    pub resolution: u32,
    /// Rows of a batch.
    pub global_batch: usize,
    /// Blocks whose rows are shuffled together. Twice as many are in memory.
    pub window: usize,
    /// Training rows or held-out ones.
    pub split: Split,
}

/// A global batch of n rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Rows that came before, over all epochs.
    pub position: u64,
    /// The samples.
    pub sample_ids: Vec<u64>,
    /// The epoch of each row, from 0.
    pub epochs: Vec<u32>,
    /// Unscaled latents, n x the shape in [`crate::DatasetSpec::latents`], f16 little-endian, row-major.
    pub latents: Vec<u8>,
    /// Text embeddings, n x the shape of [`crate::DatasetSpec::text`], f16 little-endian, row-major.
    pub text: Vec<u8>,
}

/// An endless stream of batches. Threads of its own read ahead; dropping it ends them.
#[derive(Debug)]
pub struct Stream {
    batches: Receiver<Result<Batch>>,
    state: StreamState,
    rows: u64,
}

impl Stream {
    /// Starts at the beginning, or goes on where `state` says. A state continues with the snapshot that it
    /// was made with, even if the dataset has a newer one.
    ///
    /// # Errors
    /// [`Error::State`] if the state is of another dataset, seed or configuration; [`Error::Empty`] if there
    /// are no rows; [`Error::Config`] if the resolution has several buckets.
    pub fn open(dataset: &Dataset, config: StreamConfig, state: Option<StreamState>) -> Result<Self> {
        Self::open_with_prefetch(dataset, config, state, PREFETCH)
    }

    /// As [`open`](Self::open), reading `prefetch` batches ahead.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_prefetch(
        dataset: &Dataset,
        config: StreamConfig,
        state: Option<StreamState>,
        prefetch: usize,
    ) -> Result<Self> {
        config.validate()?;
        let dataset =
            state.as_ref().map_or_else(|| Ok(dataset.clone()), |state| snapshot_of(dataset, state))?;
        let start = config.start(&dataset);
        let state = match state {
            Some(state) => state.check_continues(&start).map(|()| state)?,
            None => start,
        };
        let bucket = dataset.only_bucket(config.resolution)?;
        let blocks = Blocks::new(&dataset, config.split, bucket)?;
        let index = Arc::new(BlockIndex::new(blocks.shard_rows(), dataset.spec().row_group_rows));
        let rows = index.rows();
        let plan = Plan::new(&Indices::from([(ONLY.into(), [(bucket, index)].into())]), &state)?;
        let Some(Standing { order, position, .. }) = plan.standings(state.batches).next() else {
            return Err(dataset.empty(config.split, bucket));
        };
        let reader = Reader { blocks, order: order.clone(), global_batch: config.global_batch };
        Ok(Self { batches: reader.start(position, prefetch)?, state, rows })
    }

    /// The next batch; waits until it is read.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged; then the stream has ended.
    pub fn next_batch(&mut self) -> Result<Batch> {
        let batch = self.batches.recv().map_err(|_| Error::ReaderDied)??;
        self.state.batches += 1;
        Ok(batch)
    }

    /// Where the stream stands after the last batch that [`next_batch`](Self::next_batch) gave.
    pub fn state(&self) -> StreamState {
        self.state.clone()
    }

    /// Rows of an epoch.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

impl StreamConfig {
    fn validate(&self) -> Result<()> {
        let fail = |key| Err(Error::Config { key, problem: "must be at least 1".into() });
        match self {
            Self { global_batch: 0, .. } => fail("global_batch"),
            Self { window: 0, .. } => fail("shuffle_window"),
            _ => Ok(()),
        }
    }

    fn start(&self, dataset: &Dataset) -> StreamState {
        let manifest = dataset.manifest();
        let snapshot = Snapshot { manifest: manifest.number, digest: manifest.digest() };
        StreamState {
            version: Version,
            seed: self.seed,
            window: self.window,
            split: self.split,
            datasets: [(ONLY.into(), snapshot)].into(),
            phase: Phase {
                resolution: self.resolution,
                global_batch: self.global_batch as u64,
                mix: [(ONLY.into(), Amount::Repeat(1.0))].into(),
            },
            before: BTreeMap::new(),
            batches: 0,
        }
    }
}

/// The dataset at the snapshot that a state names.
fn snapshot_of(dataset: &Dataset, state: &StreamState) -> Result<Dataset> {
    // A state of other datasets is refused later, by their names.
    let Some(Snapshot { manifest, .. }) = state.datasets.get(ONLY) else { return Ok(dataset.clone()) };
    let uri = dataset.location().uri();
    dataset.at(*manifest).map_err(|e| {
        Error::State(format!("it needs snapshot {manifest} of the dataset, which {uri} does not have ({e})"))
    })
}
