//! The pool of workers that prepare. Its size is fixed or lies in a range; then it follows the encoders' input queue.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender};
use rayon::ThreadPoolBuilder;

use crate::engine::local::engine::Shared;
use crate::engine::local::memory_budget::Permit;
use crate::engine::retry_in_halves::Guarded;
use crate::error::{Error, Result};

/// One small batch on its way through the pool, and where its result is waited for.
pub(crate) struct Job {
    pub rows: RecordBatch,
    /// For the batch, as it was read, that the rows are a part of.
    pub read: Arc<Permit>,
    pub result: Sender<Result<RecordBatch>>,
}

/// How many of the workers may work; the others sleep.
#[derive(Debug)]
pub(crate) struct Gate {
    size: Mutex<Size>,
    changed: Condvar,
}

#[derive(Debug)]
struct Size {
    workers: usize,
    /// There is no more work.
    over: bool,
}

impl Gate {
    pub fn new(workers: usize) -> Self {
        Self { size: Mutex::new(Size { workers, over: false }), changed: Condvar::new() }
    }

    pub fn workers(&self) -> usize {
        self.lock().workers
    }

    pub fn resize(&self, workers: usize) {
        self.lock().workers = workers;
        self.changed.notify_all();
    }

    /// Waits until this worker, counted from 0, may work or the work is over.
    fn pass(&self, worker: usize) {
        let mut size = self.lock();
        while worker >= size.workers && !size.over {
            size = self.changed.wait(size).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker: one thread, one job at a time. The pool of one makes rayon's calls stay on this thread, so that the
/// number of workers is the number of busy cores.
pub(crate) fn work(shared: &Shared<'_>, worker: usize, inbox: &Receiver<Job>) -> Result<()> {
    let pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    let _pool = pool.map_err(|_| Error::Thread("prepare"))?;
    shared.prepare_stage.enter();
    let stage = Guarded::prepare(shared.prepare_stage, &shared.prepare);
    loop {
        shared.gate.pass(worker);
        let Ok(Job { rows, read, result }) = inbox.recv() else { break };
        let prepared = shared.prepare.time(|| stage.run(&rows));
        shared.prepare.count(rows.num_rows());
        drop((rows, read));
        // Nobody waits any more if the run has failed elsewhere.
        let _ = result.send(prepared);
    }
    // Those that sleep shall see it too.
    shared.gate.end();
    Ok(())
}

/// What the size of the pool is decided from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub workers: usize,
    /// The least and the most there may be.
    pub range: (usize, usize),
    /// Batches that wait for an encoder, and how many may.
    pub queued: usize,
    pub room: usize,
    /// The workers' utilisation lately.
    pub busy: f64,
    /// The machine's idle cores.
    pub spare_cores: f64,
}

impl Load {
    pub fn of(shared: &Shared<'_>, range: (usize, usize), busy: f64, spare_cores: f64) -> Self {
        let (workers, queued) = (shared.gate.workers(), shared.queued.load(Ordering::Relaxed));
        Self { workers, range, queued, room: shared.room, busy, spare_cores }
    }
}

/// The number of workers from now on: one more if the encoders' queue runs empty while all workers are busy and there
/// is a core for another, one less if the queue is full.
pub(crate) fn decide(load: &Load) -> usize {
    let (min, max) = load.range;
    let starving = load.queued == 0 && load.busy > 0.8 && load.spare_cores >= 1.0;
    let target = match load.workers {
        n if starving => n + 1,
        n if load.queued >= load.room => n.saturating_sub(1),
        n => n,
    };
    target.clamp(min, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_follows_the_encoders_queue() {
        let base = Load { workers: 4, range: (2, 8), queued: 1, room: 2, busy: 1.0, spare_cores: 3.0 };
        for (what, load, expected) in [
            ("neither empty nor full", base, 4),
            ("empty, cores are spare", Load { queued: 0, ..base }, 5),
            ("empty, no core is spare", Load { queued: 0, spare_cores: 0.4, ..base }, 4),
            ("empty because the source is slow", Load { queued: 0, busy: 0.3, ..base }, 4),
            ("empty at the most", Load { queued: 0, workers: 8, ..base }, 8),
            ("full", Load { queued: 2, ..base }, 3),
            ("full at the least", Load { queued: 2, workers: 2, ..base }, 2),
            ("a fixed size, empty", Load { queued: 0, range: (4, 4), ..base }, 4),
            ("a fixed size, full", Load { queued: 2, range: (4, 4), ..base }, 4),
        ] {
            assert_eq!(decide(&load), expected, "{what}");
        }
    }
}
