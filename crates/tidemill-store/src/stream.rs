//! The training stream: global batches of datasets' rows in an order that is a pure function of (seed,
//! epoch, snapshots, mix). Blocks are permuted, and rows are shuffled within windows of blocks. Every row comes
//! exactly once an epoch, and batches straddle epochs. Where a stream stands is one small JSON object.
//!
//! What comes when, and who reads it, is worked out by modules that neither read nor wait: [`blocks`] cuts shards into blocks,
//! [`order`] shuffles them, [`mix`] and [`buckets`] say whose turn it is, [`plan`] puts these together to batches, [`share`]
//! deals those out to ranks, and [`state`] is where all of it stands. Then come those that do it: `planner` says what
//! a rank has to read, `threads` read it, and `gather` copies rows into batches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::datasets::{Datasets, ONLY, difference, go_back, only, snapshots};
use self::gather::Gatherer;
pub use self::gather::{Skipped, Unreadable};
pub use self::mix::Amount;
use self::plan::Plan;
use self::planner::Planner;
pub use self::share::{Ranks, Seat};
use self::state::Version;
pub use self::state::{Phase, Snapshot, StreamState};
use self::threads::{Numbers, Threads};
use crate::bucket::Bucket;
pub use crate::buffer::Buffer;
use crate::buffer::Pool;
use crate::cache::Cache;
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

mod datasets;
mod gather;
mod planner;
mod slot;
mod threads;

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
pub struct Reading {
    /// Whose part of each global batch.
    pub seat: Seat,
    /// Batches made ahead.
    pub prefetch: usize,
    /// Threads that read; 0 means two per core, and at least sixteen if any dataset is not on this machine.
    pub readers: usize,
    /// What becomes of rows that cannot be read.
    pub unreadable: Unreadable,
    /// Keeps row groups of datasets that are not on this machine.
    pub cache: Option<Arc<Cache>>,
}

impl Default for Reading {
    fn default() -> Self {
        Self { seat: Seat::default(), prefetch: 4, readers: 0, unreadable: Unreadable::Stop, cache: None }
    }
}

/// The n rows of a rank in a global batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// Batches of the phase before it.
    pub number: u64,
    /// The size of all its images.
    pub bucket: Bucket,
    /// The rows' places in the global batch, ascending.
    pub places: Vec<u32>,
    /// The samples.
    pub sample_ids: Vec<u64>,
    /// The epoch of each row in its dataset, from 0.
    pub epochs: Vec<u32>,
    /// Unscaled latents, n x the shape in [`crate::DatasetSpec::latents`], f16 little-endian, row-major.
    pub latents: Buffer,
    /// Text embeddings, n x the shape of [`crate::DatasetSpec::text`], f16 little-endian, row-major.
    pub text: Buffer,
}

/// An endless stream of batches. Threads of its own read ahead; dropping it ends them.
#[derive(Debug)]
pub struct Stream {
    threads: Threads,
    plan: Arc<Plan>,
    state: StreamState,
    skipped: Arc<Mutex<Skipped>>,
    rows: u64,
}

impl Stream {
    /// Starts at the beginning, or goes on where `state` says. A state continues with the snapshots that it
    /// was made with, even if a dataset has a newer one.
    ///
    /// # Errors
    /// [`Error::State`] if the state is of other datasets, another seed or configuration; [`Error::Empty`] if there
    /// are no rows; [`Error::Config`] if the mix makes no sense or mixes what does not fit.
    pub fn open(
        datasets: &Datasets,
        config: StreamConfig,
        reading: Reading,
        state: Option<StreamState>,
    ) -> Result<Self> {
        if config.window == 0 {
            return Err(Error::Config { key: "shuffle_window", problem: "must be at least 1".into() });
        }
        let datasets = match &state {
            Some(state) => datasets::at_snapshots(datasets, state)?,
            None => datasets.clone(),
        };
        let start = config.start(&datasets);
        let state = match state {
            Some(state) => {
                state.check_continues(&start)?;
                StreamState { datasets: start.datasets, ..state }
            }
            None => start,
        };
        let datasets = datasets::of_phase(&datasets, &config.phase)?;
        let (shards, indices) = datasets::shards(&datasets, &config, reading.cache.as_ref())?;
        let rows = indices.values().flat_map(BTreeMap::values).map(|index| index.rows()).sum();
        let plan = Arc::new(Plan::new(&indices, &state)?);
        let remote = datasets.values().any(|dataset| !dataset.location().is_local());
        let skipped = Arc::new(Mutex::new(Skipped::new()));
        let numbers = reading.numbers(remote);
        // Those that are made, those that are on their way, and those that a trainer has in its hands.
        let buffers = 2 * (numbers.prefetch + numbers.gatherers + 2);
        let gatherer =
            Gatherer { pool: Pool::new(buffers), unreadable: reading.unreadable, skipped: skipped.clone() };
        let planner = Planner::new(&plan, state.batches, reading.seat, &shards);
        Ok(Self { threads: Threads::start(planner, gatherer, numbers)?, plan, state, skipped, rows })
    }

    /// The next batch; waits until it is there.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, unless its rows are to be skipped.
    pub fn next_batch(&mut self) -> Result<Batch> {
        let batch = self.threads.next()?;
        self.state.batches += 1;
        Ok(batch)
    }

    /// Whether the next batch is there in time; it is still to be taken.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub fn is_there_within(&mut self, patience: Duration) -> Result<bool> {
        self.threads.is_there_within(patience)
    }

    /// The next batch, if it is there already; it is still to be taken.
    pub fn peek(&mut self) -> Option<&Batch> {
        self.threads.peek()
    }

    /// Where the stream stands after the last batch that [`next_batch`](Self::next_batch) gave.
    pub fn state(&self) -> StreamState {
        self.state.clone()
    }

    /// The state at the beginning of another phase after that batch. Each dataset goes on where it is.
    pub fn next_phase(&self, phase: Phase) -> StreamState {
        self.plan.next_phase(&self.state, phase)
    }

    /// Rows of the datasets that take part.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows that were left out since the stream was opened because they could not be read, by why.
    pub fn skipped(&self) -> Skipped {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Reading {
    fn numbers(&self, remote: bool) -> Numbers {
        let cores = tidemill_io::cores();
        let readers = match self.readers {
            0 if remote => (2 * cores).max(16),
            0 => 2 * cores,
            readers => readers,
        };
        Numbers { readers, gatherers: cores.min(self.prefetch.max(1)), prefetch: self.prefetch }
    }
}

impl StreamConfig {
    fn start(&self, datasets: &Datasets) -> StreamState {
        StreamState {
            version: Version,
            seed: self.seed,
            window: self.window,
            split: self.split,
            datasets: datasets::snapshots(datasets),
            phase: self.phase.clone(),
            before: BTreeMap::new(),
            batches: 0,
        }
    }
}
