//! The training stream: global batches of a dataset's rows in an order that is a pure function of (seed,
//! epoch, snapshot). Blocks are permuted, and rows are shuffled within windows of blocks. Every row comes
//! exactly once an epoch, and batches straddle epochs. Where a stream stands is one small JSON object.

use crossbeam_channel::Receiver;
use serde::{Deserialize, Serialize};

use self::order::Order;
use self::reader::Reader;
use crate::dataset::{Blocks, Dataset};
use crate::error::{Error, Result};
pub use crate::layout::Split;

pub mod buckets;
pub mod interleave;
pub mod mix;
pub mod order;
pub mod permutation;

mod reader;

/// Batches read ahead, unless chosen otherwise.
const PREFETCH: usize = 4;

/// What a stream gives, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Another seed, another order.
    pub seed: u64,
    /// The latents' resolution in pixels, which must have just one bucket in the dataset.
    pub resolution: u32,
    /// Rows of a batch.
    pub global_batch: usize,
    /// Blocks (row groups) whose rows are shuffled together. Twice as many are in memory.
    pub window: usize,
    /// Training rows or held-out ones.
    pub split: Split,
}

/// Where a stream stands: enough to go on with the very next row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamState {
    /// The manifest's number.
    pub manifest: u64,
    /// The manifest's digest.
    pub digest: String,
    /// As in [`StreamConfig`].
    pub seed: u64,
    /// As in [`StreamConfig`].
    pub resolution: u32,
    /// As in [`StreamConfig`].
    pub window: usize,
    /// As in [`StreamConfig`].
    pub split: Split,
    /// Rows given so far, over all epochs.
    pub position: u64,
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
        let position = state.as_ref().map_or(0, |state| state.position);
        if let Some(state) = state {
            state.check_continues(&start)?;
        }
        let bucket = dataset.only_bucket(config.resolution)?;
        let blocks = Blocks::new(&dataset, config.split, bucket)?;
        let order = Order::new(config.seed, blocks.rows().to_vec(), config.window);
        let rows = order.rows();
        let batches =
            Reader { blocks, order, global_batch: config.global_batch }.start(position, prefetch)?;
        Ok(Self { batches, state: StreamState { position, ..start }, rows })
    }

    /// The next batch; waits until it is read.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged; then the stream has ended.
    pub fn next_batch(&mut self) -> Result<Batch> {
        let batch = self.batches.recv().map_err(|_| Error::ReaderDied)??;
        self.state.position = batch.position + batch.sample_ids.len() as u64;
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
        StreamState {
            manifest: dataset.manifest().number,
            digest: dataset.manifest().digest(),
            seed: self.seed,
            resolution: self.resolution,
            window: self.window,
            split: self.split,
            position: 0,
        }
    }
}

/// The dataset at the snapshot that a state names.
fn snapshot_of(dataset: &Dataset, state: &StreamState) -> Result<Dataset> {
    let uri = dataset.location().uri();
    dataset.at(state.manifest).map_err(|e| {
        Error::State(format!(
            "it needs snapshot {} of the dataset, which {uri} does not have ({e})",
            state.manifest
        ))
    })
}

impl StreamState {
    fn check_continues(&self, start: &Self) -> Result<()> {
        let differs = |what: &str, state: &dyn std::fmt::Display, now: &dyn std::fmt::Display| {
            let advice = "restore the setting, or start anew";
            Err(Error::State(format!("it was made with {what} {state}, this run has {now}; {advice}")))
        };
        if self.digest != start.digest {
            return differs("another dataset, of digest", &self.digest, &start.digest);
        }
        if self.seed != start.seed {
            return differs("seed", &self.seed, &start.seed);
        }
        if self.resolution != start.resolution {
            return differs("resolution", &self.resolution, &start.resolution);
        }
        if self.window != start.window {
            return differs("shuffle_window", &self.window, &start.window);
        }
        if self.split != start.split {
            return differs("split", &self.split.name(), &start.split.name());
        }
        Ok(())
    }
}
