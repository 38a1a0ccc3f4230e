//! `engine.memory`: the bytes that a run's batches may take, from reading to writing. Whoever makes
//! a batch first acquires a [`MemoryPermit`] for it, and waits if there is no room. Dropping the
//! permit frees its bytes. This is what limits how far readers run ahead of a slow stage.
//!
//! [`MemoryPlan`] divides the memory into two parts:
//! - *Reading*: a quarter, or more if a row group of the source needs it. Each reader has a share
//!   for what its unit holds while it is read ([`InputUnit::held`](tidemill_data::InputUnit)), for
//!   what it reads ahead, and for the batch that it builds. Each open unit has a share for its
//!   batches; a permit covers a batch until its last row is prepared.
//! - *Working*: the rest, first come, first served. A permit covers the rows of a prepare task,
//!   prepared and encoded, from before they go to a worker until they are written.
//!
//! No thread waits forever:
//! - Writing, encoding and preparing wait for no permit, so work in flight ends and frees its
//!   bytes.
//! - A feeder waits for the working part. What may stay there without moving is one unfinished
//!   encode batch per encoder. The part holds that much and one more prepare task for each encoder:
//!   less memory than [`min_memory`](super::memory_plan::min_memory) is refused, and a row counts
//!   for no more than [`MemoryPlan::work_bytes_per_row`]. So if a task does not fit, other work is
//!   in flight and will free its bytes.
//! - A reader owns its share for as long as it lives. For a batch it waits for its unit's share,
//!   which holds only batches that the unit's feeder will take. A batch larger than the whole share
//!   passes alone and counts as the whole share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use serde::Serialize;

use crate::engine::local::backpressure::memory_plan::{
    BATCHES_PER_OPEN_UNIT, BATCHES_PER_READER, MemoryPlan, OPEN_UNITS_PER_READER,
};

/// How much of its memory a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryUsage {
    /// Bytes that the batches in flight may take.
    pub limit: u64,
    /// The most bytes that they took.
    pub peak: u64,
}

/// The memory of one run.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    plan: MemoryPlan,
    usage: Arc<UsageCounter>,
    /// The bytes of the working part.
    working: Arc<ByteSemaphore>,
    /// The shares of all readers.
    reading: Arc<ByteSemaphore>,
    /// One token for each unit that may be open.
    open_tokens: (Sender<()>, Receiver<()>),
}

impl MemoryBudget {
    /// A budget of `limit` bytes, divided as planned.
    pub fn new(limit: u64, plan: MemoryPlan) -> Self {
        let usage = Arc::new(UsageCounter::default());
        let units = OPEN_UNITS_PER_READER * plan.readers;
        let open_tokens = bounded(units);
        for _ in 0..units {
            // The channel has room for each token.
            let _ = open_tokens.0.send(());
        }
        let working = ByteSemaphore::new(plan.work_bytes, &usage, None);
        let per_reader = plan.held_per_unit + BATCHES_PER_READER * plan.read_batch_bytes;
        let reading = ByteSemaphore::new(plan.readers as u64 * per_reader, &usage, None);
        Self { limit, plan, usage, working, reading, open_tokens }
    }

    /// How the memory is divided.
    pub fn plan(&self) -> MemoryPlan {
        self.plan
    }

    /// Acquires a reader's share for a unit that holds this many bytes while it is read. There is
    /// room for every reader. Returns `None` if the run has failed.
    pub fn acquire_reader_share(&self, held: u64) -> Option<MemoryPermit> {
        self.reading
            .acquire(held.min(self.plan.held_per_unit) + BATCHES_PER_READER * self.plan.read_batch_bytes)
    }

    /// The bytes of the working part.
    pub fn working(&self) -> &Arc<ByteSemaphore> {
        &self.working
    }

    /// Waits until another unit may be opened, and returns the share for its batches. The share is
    /// free again when it and all its permits are dropped.
    pub fn open_unit(&self) -> Arc<ByteSemaphore> {
        // Cannot fail: `self` holds a sender.
        let _ = self.open_tokens.1.recv();
        let token = OpenUnitToken(self.open_tokens.0.clone());
        ByteSemaphore::new(BATCHES_PER_OPEN_UNIT * self.plan.read_batch_bytes, &self.usage, Some(token))
    }

    /// Wakes all threads that wait for the working part, because the run has failed.
    pub fn close(&self) {
        self.working.lock().is_closed = true;
        self.working.freed.notify_all();
    }

    /// The limit, and the most bytes taken so far.
    pub fn usage(&self) -> MemoryUsage {
        MemoryUsage { limit: self.limit, peak: self.usage.peak.load(Ordering::Relaxed) }
    }
}

/// The bytes of all permits of a budget.
#[derive(Debug, Default)]
struct UsageCounter {
    now: AtomicU64,
    peak: AtomicU64,
}

/// Allows one unit to be open, until dropped.
#[derive(Debug)]
struct OpenUnitToken(Sender<()>);

impl Drop for OpenUnitToken {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

/// A share of the memory: a semaphore over bytes that serves requests in the order they were made.
#[derive(Debug)]
pub struct ByteSemaphore {
    limit: u64,
    state: Mutex<SemaphoreState>,
    freed: Condvar,
    usage: Arc<UsageCounter>,
    _token: Option<OpenUnitToken>,
}

#[derive(Debug, Default)]
struct SemaphoreState {
    used: u64,
    /// The number that the next request gets.
    next_request: u64,
    /// The number of the request that is served next.
    next_served: u64,
    is_closed: bool,
}

impl ByteSemaphore {
    fn new(limit: u64, usage: &Arc<UsageCounter>, token: Option<OpenUnitToken>) -> Arc<Self> {
        let (state, freed) = Default::default();
        Arc::new(Self { limit, state, freed, usage: usage.clone(), _token: token })
    }

    /// Waits until there is room for this many bytes. Returns `None` if the run has failed.
    pub fn acquire(self: &Arc<Self>, bytes: u64) -> Option<MemoryPermit> {
        let bytes = bytes.min(self.limit);
        let mut state = self.lock();
        let request = state.next_request;
        state.next_request += 1;
        while !state.is_closed && (state.next_served != request || state.used + bytes > self.limit) {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return None;
        }
        state.next_served += 1;
        state.used += bytes;
        let now = self.usage.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.usage.peak.fetch_max(now, Ordering::Relaxed);
        drop(state);
        self.freed.notify_all();
        Some(MemoryPermit { semaphore: self.clone(), bytes })
    }

    fn lock(&self) -> MutexGuard<'_, SemaphoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to some bytes of a share, until dropped.
#[derive(Debug)]
pub struct MemoryPermit {
    semaphore: Arc<ByteSemaphore>,
    bytes: u64,
}

impl MemoryPermit {
    /// Corrects a permit that was acquired for an estimate. Waits if it must grow.
    pub fn resize(self, bytes: u64) -> Option<Self> {
        let semaphore = self.semaphore.clone();
        drop(self);
        semaphore.acquire(bytes)
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.semaphore.usage.now.fetch_sub(self.bytes, Ordering::Relaxed);
        self.semaphore.lock().used -= self.bytes;
        self.semaphore.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A budget of 400 bytes, 300 of them for work, with one reader.
    fn budget() -> MemoryBudget {
        MemoryBudget::new(400, MemoryPlan::new(400, 1, 0, 1).unwrap())
    }

    #[test]
    fn permits_never_exceed_the_limit() {
        let budget = budget();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for bytes in [1, 299, 40, 1000, 7] {
                        let permit = budget.working().acquire(bytes).unwrap();
                        thread::sleep(Duration::from_micros(50));
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(budget.working().lock().used, 0);
        assert_eq!(budget.usage(), MemoryUsage { limit: 400, peak: 300 });
    }

    #[test]
    fn requests_are_served_in_order() {
        let budget = budget();
        let first = budget.working().acquire(200).unwrap();
        let (order, served) = bounded(2);
        thread::scope(|scope| {
            for (number, bytes) in [(1, 300), (2, 50)] {
                let (order, working) = (order.clone(), budget.working());
                scope.spawn(move || {
                    let permit = working.acquire(bytes);
                    order.send(number).unwrap();
                    drop(permit);
                });
                while working.lock().next_request <= number {
                    thread::yield_now();
                }
            }
            // The second request would fit, but has to wait for the first.
            assert!(served.try_recv().is_err());
            drop(first);
        });
        assert_eq!(served.try_iter().count(), 2);
    }

    #[test]
    fn unit_stays_open_until_its_last_permit_is_dropped() {
        let budget = budget();
        let (one, two) = (budget.open_unit(), budget.open_unit());
        let permit = one.acquire(1000).unwrap();
        assert_eq!(budget.usage().peak, 32, "two of six batches of a quarter");
        drop((one, two));
        drop(budget.open_unit());
        assert_eq!(budget.open_tokens.1.len(), 1);
        drop(permit);
        assert_eq!(budget.open_tokens.1.len(), 2);
    }

    #[test]
    fn closing_wakes_waiting_threads() {
        let budget = budget();
        let all = budget.working().acquire(300);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.working().acquire(1).is_none());
            while budget.working().lock().next_request < 2 {
                thread::yield_now();
            }
            budget.close();
            assert!(waiting.join().unwrap());
        });
        drop(all);
    }
}
