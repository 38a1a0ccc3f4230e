//! The training stream: opens datasets, and returns batches that its threads prefetch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::shard::buffer_pool::BufferPool;
use crate::stream::batch::{Batch, SkippedRows};
use crate::stream::config::{ReadOptions, StreamConfig};
use crate::stream::datasets::{self, Datasets};
use crate::stream::order::batch_plan::BatchPlan;
use crate::stream::reader::gather::Gatherer;
use crate::stream::reader::read_planner::ReadPlanner;
use crate::stream::reader::threads::ReaderThreads;
use crate::stream::state::{Phase, StreamState};

/// An endless stream of batches. Its threads prefetch batches, and end when the stream is dropped.
#[derive(Debug)]
pub struct Stream {
    threads: ReaderThreads,
    plan: Arc<BatchPlan>,
    state: StreamState,
    skipped: Arc<Mutex<SkippedRows>>,
    rows: u64,
}

impl Stream {
    /// Opens a stream at its beginning, or resumes from `state`. A resumed stream keeps the
    /// snapshots that its state was made with, even if a dataset has a newer one.
    ///
    /// # Errors
    /// [`Error::State`] if the state belongs to other datasets, another seed or another
    /// configuration; [`Error::Empty`] if there are no rows; [`Error::Config`] if the mix is not
    /// valid or its datasets do not fit each other.
    pub fn open(
        datasets: &Datasets,
        config: StreamConfig,
        options: ReadOptions,
        state: Option<StreamState>,
    ) -> Result<Self> {
        if config.window == 0 {
            return Err(Error::Config { key: "shuffle_window", problem: "must be at least 1".into() });
        }
        let datasets = match &state {
            Some(state) => datasets::open_at_snapshots(datasets, state)?,
            None => datasets.clone(),
        };
        let start = config.start_state(datasets::snapshot_ids(&datasets));
        let state = match state {
            Some(state) => {
                state.check_continues(&start)?;
                StreamState { datasets: start.datasets, ..state }
            }
            None => start,
        };
        let datasets = datasets::datasets_of_phase(&datasets, &config.phase)?;
        let (shards, indices) = datasets::open_shards(&datasets, &config, options.cache.as_ref())?;
        let rows = indices.values().flat_map(BTreeMap::values).map(|index| index.rows()).sum();
        let plan = Arc::new(BatchPlan::new(&indices, &state)?);
        let remote = datasets.values().any(|dataset| !dataset.location().is_local());
        let skipped = Arc::new(Mutex::new(SkippedRows::new()));
        let counts = options.thread_counts(remote);
        // Batches that are finished, batches that are being made, and batches that the trainer
        // holds.
        let buffers = 2 * (counts.prefetch + counts.gatherers + 2);
        let spec = datasets.values().next().map(|dataset| dataset.spec());
        let gatherer = Gatherer {
            pool: BufferPool::new(buffers),
            text_columns: spec.map_or(1, |spec| spec.text_columns().count()),
            has_time_ids: spec.is_some_and(|spec| spec.has_time_ids),
            unreadable: options.unreadable,
            skipped: skipped.clone(),
        };
        let planner = ReadPlanner::new(&plan, state.batches, options.rank, &shards);
        Ok(Self { threads: ReaderThreads::start(planner, gatherer, counts)?, plan, state, skipped, rows })
    }

    /// Returns the next batch. Waits until it is ready.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, unless its rows are to be skipped.
    pub fn next_batch(&mut self) -> Result<Batch> {
        let batch = self.threads.take_next()?;
        self.state.batches += 1;
        Ok(batch)
    }

    /// Whether the next batch is ready within a time. The batch stays in the stream.
    ///
    /// # Errors
    /// The errors of [`next_batch`](Self::next_batch).
    pub fn is_ready_within(&mut self, timeout: Duration) -> Result<bool> {
        self.threads.is_ready_within(timeout)
    }

    /// The next batch if it is ready, without taking it.
    pub fn peek(&mut self) -> Option<&Batch> {
        self.threads.peek()
    }

    /// The state after the last batch that [`next_batch`](Self::next_batch) returned.
    pub fn state(&self) -> StreamState {
        self.state.clone()
    }

    /// The state at the beginning of another phase after that batch. Each dataset continues at its
    /// position.
    pub fn next_phase(&self, phase: Phase) -> StreamState {
        self.plan.next_phase(&self.state, phase)
    }

    /// Number of rows of the datasets that take part.
    pub fn num_rows(&self) -> u64 {
        self.rows
    }

    /// Rows left out since the stream was opened because they could not be read.
    pub fn skipped_rows(&self) -> SkippedRows {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
