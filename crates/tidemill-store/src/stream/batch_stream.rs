//! The stream itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::shard::buffer::BufferPool;
use crate::stream::batch::{Batch, SkippedRows};
use crate::stream::config::{ReadOptions, StreamConfig};
use crate::stream::datasets::{self, Datasets};
use crate::stream::order::batch_plan::BatchPlan;
use crate::stream::reader::gather::Gatherer;
use crate::stream::reader::read_planner::ReadPlanner;
use crate::stream::reader::threads::ReaderThreads;
use crate::stream::state::{Phase, StreamState};

/// An endless stream of batches. ReaderThreads of its own read ahead; dropping it ends them.
#[derive(Debug)]
pub struct Stream {
    threads: ReaderThreads,
    plan: Arc<BatchPlan>,
    state: StreamState,
    skipped: Arc<Mutex<SkippedRows>>,
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
        reading: ReadOptions,
        state: Option<StreamState>,
    ) -> Result<Self> {
        if config.window == 0 {
            return Err(Error::Config { key: "shuffle_window", problem: "must be at least 1".into() });
        }
        let datasets = match &state {
            Some(state) => datasets::at_snapshots(datasets, state)?,
            None => datasets.clone(),
        };
        let start = config.start(datasets::snapshot_ids(&datasets));
        let state = match state {
            Some(state) => {
                state.check_continues(&start)?;
                StreamState { datasets: start.datasets, ..state }
            }
            None => start,
        };
        let datasets = datasets::datasets_of_phase(&datasets, &config.phase)?;
        let (shards, indices) = datasets::open_shards(&datasets, &config, reading.cache.as_ref())?;
        let rows = indices.values().flat_map(BTreeMap::values).map(|index| index.rows()).sum();
        let plan = Arc::new(BatchPlan::new(&indices, &state)?);
        let remote = datasets.values().any(|dataset| !dataset.location().is_local());
        let skipped = Arc::new(Mutex::new(SkippedRows::new()));
        let numbers = reading.numbers(remote);
        // Those that are made, those that are on their way, and those that a trainer has in its hands.
        let buffers = 2 * (numbers.prefetch + numbers.gatherers + 2);
        let gatherer = Gatherer {
            pool: BufferPool::new(buffers),
            unreadable: reading.unreadable,
            skipped: skipped.clone(),
        };
        let planner = ReadPlanner::new(&plan, state.batches, reading.rank, &shards);
        Ok(Self { threads: ReaderThreads::start(planner, gatherer, numbers)?, plan, state, skipped, rows })
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
    pub fn is_ready_within(&mut self, patience: Duration) -> Result<bool> {
        self.threads.is_ready_within(patience)
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
    pub fn num_rows(&self) -> u64 {
        self.rows
    }

    /// Rows that were left out since the stream was opened because they could not be read, by why.
    pub fn skipped_rows(&self) -> SkippedRows {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
