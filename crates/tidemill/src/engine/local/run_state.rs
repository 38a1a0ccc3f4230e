//! What all threads of a run of the local engine share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow::array::RecordBatch;
use tidemill_data::source::Source;

use crate::engine::local::backpressure::memory_budget::MemoryBudget;
use crate::engine::local::worker_gate::WorkerGate;
use crate::engine::quarantine_limit::RowTally;
use crate::engine::sink::Sink;
use crate::engine::stage::Stage;
use crate::engine::stage_utilization::{MeterReading, StageMeter, StageUtilization};
use crate::engine::stop_signal::StopSignal;
use crate::error::Error;
use crate::progress::Progress;

/// The shared state of a run.
pub(crate) struct RunState<'a> {
    pub source: &'a dyn Source,
    pub prepare_stage: &'a (dyn Stage + Sync),
    pub sink: &'a dyn Sink,
    pub progress: &'a Progress,
    /// Kept rows of an encode batch.
    pub batch_size: usize,
    pub memory: MemoryBudget,
    pub row_cost: RowCost,
    pub worker_gate: WorkerGate,
    pub encode_queue: EncodeQueue,
    pub meters: StageMeters,
    pub tally: Mutex<RowTally>,
    pub stop: StopState<'a>,
}

/// What rows count for in the working part of the memory.
#[derive(Debug)]
pub(crate) struct RowCost {
    /// The most bytes that the stages add to a row.
    pub row_bytes: u64,
    /// The most bytes that a row may count for.
    pub max_row_bytes: u64,
}

/// Encode batches that wait for an encoder, in all pipelines together.
#[derive(Debug)]
pub(crate) struct EncodeQueue {
    pub waiting: AtomicUsize,
    pub capacity: usize,
}

/// One meter per stage.
#[derive(Debug)]
pub(crate) struct StageMeters {
    pub read: StageMeter,
    pub prepare: StageMeter,
    pub encode: StageMeter,
    pub write: StageMeter,
}

/// Why a run ends early: a signal, or the first error of any thread.
pub(crate) struct StopState<'a> {
    signal: &'a StopSignal,
    has_failed: AtomicBool,
    first_error: Mutex<Option<Error>>,
}

impl RunState<'_> {
    pub fn lock_tally(&self) -> MutexGuard<'_, RowTally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that rows may take once they are prepared and encoded. Rows that carry much along are
    /// capped, so that the memory always has room for an unfinished encode batch of each encoder.
    /// Without the cap, all encoders could wait for each other forever.
    pub fn work_bytes(&self, rows: &RecordBatch) -> u64 {
        let (n, carried) = (rows.num_rows() as u64, self.prepare_stage.carried_bytes(rows));
        (n * self.row_cost.row_bytes + carried).min(n * self.row_cost.max_row_bytes)
    }

    /// Keeps the first error and ends the run: the threads before and after the failed one end as
    /// their channels close.
    pub fn fail(&self, error: Error) {
        self.stop.set_error(error);
        self.memory.close();
    }
}

impl StageMeters {
    /// All meters, in the order in which rows pass the stages.
    pub fn in_order(&self) -> [&StageMeter; 4] {
        [&self.read, &self.prepare, &self.encode, &self.write]
    }

    /// What the stages did since these readings.
    pub fn utilization_since(&self, before: &[MeterReading; 4], since: Instant) -> [StageUtilization; 4] {
        let (meters, seconds) = (self.in_order(), since.elapsed().as_secs_f64());
        std::array::from_fn(|i| meters[i].utilization_since(&before[i], seconds))
    }
}

impl<'a> StopState<'a> {
    pub fn new(signal: &'a StopSignal) -> Self {
        Self { signal, has_failed: AtomicBool::new(false), first_error: Mutex::new(None) }
    }

    /// Whether a thread of the run has failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Whether no more units shall be started.
    pub fn is_stopping(&self) -> bool {
        self.has_failed() || self.signal.is_raised()
    }

    /// The first error, if a thread has failed.
    pub fn into_error(self) -> Option<Error> {
        self.first_error.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_error(&self, error: Error) {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.has_failed.store(true, Ordering::Relaxed);
    }
}
