//! How many of the prepare workers may work at the moment; the others sleep.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets the first n prepare workers pass.
#[derive(Debug)]
pub(crate) struct WorkerGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug)]
struct GateState {
    active_workers: usize,
    /// There is no more work, so sleeping workers shall wake up and end.
    is_finished: bool,
}

impl WorkerGate {
    pub fn new(active_workers: usize) -> Self {
        let state = GateState { active_workers, is_finished: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The number of workers that may work.
    pub fn active_workers(&self) -> usize {
        self.lock().active_workers
    }

    /// Sets the number of workers that may work.
    pub fn set_active_workers(&self, workers: usize) {
        self.lock().active_workers = workers;
        self.changed.notify_all();
    }

    /// Waits until this worker, counted from 0, may work or the work is finished.
    pub fn wait_until_active(&self, worker: usize) {
        let mut state = self.lock();
        while worker >= state.active_workers && !state.is_finished {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all sleeping workers, because there is no more work.
    pub fn finish(&self) {
        self.lock().is_finished = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
