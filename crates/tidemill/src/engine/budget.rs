//! `engine.memory`: the bytes that a run's batches may take, from reading to writing. Whoever makes a batch takes a
//! [`Permit`] for it first and waits where there is no room; the permit is given back when the batch is dropped.
//!
//! A quarter is for *reading*, in equal parts for the units that may be open at a time: a permit covers a batch as it
//! was read until its last row is prepared. The rest is for *working*, first come, first served: a permit covers a
//! job's rows prepared and encoded, from before they are handed to a worker until they are written.
//!
//! Nobody waits for ever:
//! - Writing, encoding and preparing wait for no permit, so work that is under way ends and frees its bytes.
//! - A feeder waits for the working part. What may lie still there is one unfinished encode batch per lane, and the
//!   part holds that much and a job more for each ([`least`] is refused otherwise): if a job does not fit, something
//!   else is under way.
//! - A reader waits for its own unit's part, where only batches lie that the unit's feeder will take. A batch larger
//!   than the whole part is let through alone and counts as the whole part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use serde::Serialize;

/// The part of the memory that batches as read may take: 1 / 4.
const READING: u64 = 4;

/// The memory of a run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What the batches in flight may take.
    pub limit: u64,
    /// The most that they took.
    pub peak: u64,
}

/// The least memory for that many bytes of work.
pub fn least(working: u64) -> u64 {
    working.div_ceil(READING - 1) * READING
}

/// All of the memory.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    ledger: Arc<Ledger>,
    working: Arc<Share>,
    unit: u64,
    /// A token for each unit that may be opened.
    tokens: (Sender<()>, Receiver<()>),
}

impl Budget {
    /// `limit` bytes, with up to `units` units open.
    pub fn new(limit: u64, units: usize) -> Self {
        let ledger = Arc::new(Ledger::default());
        let reading = limit / READING;
        let tokens = bounded(units);
        for _ in 0..units {
            // There is room for each.
            let _ = tokens.0.send(());
        }
        let working = Share::new(limit - reading, &ledger, None);
        Self { limit, ledger, working, unit: reading / units as u64, tokens }
    }

    /// The part for work.
    pub fn working(&self) -> &Arc<Share> {
        &self.working
    }

    /// Opens a unit: waits until its part of the memory is free. The part is free again when it and all its permits
    /// are dropped.
    pub fn open(&self) -> Arc<Share> {
        // The sender is alive.
        let _ = self.tokens.1.recv();
        Share::new(self.unit, &self.ledger, Some(Token(self.tokens.0.clone())))
    }

    /// Lets nobody wait for work any more: the run has failed.
    pub fn close(&self) {
        self.working.lock().closed = true;
        self.working.freed.notify_all();
    }

    pub fn memory(&self) -> Memory {
        Memory { limit: self.limit, peak: self.ledger.peak.load(Ordering::Relaxed) }
    }
}

/// The bytes of all permits.
#[derive(Debug, Default)]
struct Ledger {
    now: AtomicU64,
    peak: AtomicU64,
}

#[derive(Debug)]
struct Token(Sender<()>);

impl Drop for Token {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

/// A part of the memory: a semaphore over bytes that serves in the order of asking.
#[derive(Debug)]
pub struct Share {
    limit: u64,
    state: Mutex<State>,
    freed: Condvar,
    ledger: Arc<Ledger>,
    _token: Option<Token>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    /// The number of the next one to ask, and of the next one to be served.
    next: u64,
    serving: u64,
    closed: bool,
}

impl Share {
    fn new(limit: u64, ledger: &Arc<Ledger>, token: Option<Token>) -> Arc<Self> {
        let (state, freed) = Default::default();
        Arc::new(Self { limit, state, freed, ledger: ledger.clone(), _token: token })
    }

    /// Waits until there is room for so many bytes; none if the run has failed.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let bytes = bytes.min(self.limit);
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        while !state.closed && (state.serving != number || state.used + bytes > self.limit) {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return None;
        }
        state.serving += 1;
        state.used += bytes;
        let now = self.ledger.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.ledger.peak.fetch_max(now, Ordering::Relaxed);
        drop(state);
        self.freed.notify_all();
        Some(Permit { share: self.clone(), bytes })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some bytes of a share, until dropped.
#[derive(Debug)]
pub struct Permit {
    share: Arc<Share>,
    bytes: u64,
}

impl Permit {
    /// Corrects a permit that was taken for a guess: waits if it must grow.
    pub fn resize(self, bytes: u64) -> Option<Self> {
        let share = self.share.clone();
        drop(self);
        share.take(bytes)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.share.ledger.now.fetch_sub(self.bytes, Ordering::Relaxed);
        self.share.lock().used -= self.bytes;
        self.share.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn permits_never_exceed_the_limit() {
        let budget = Budget::new(400, 1);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for bytes in [1, 299, 40, 1000, 7] {
                        let permit = budget.working().take(bytes).unwrap();
                        thread::sleep(Duration::from_micros(50));
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(budget.working().lock().used, 0);
        assert_eq!(budget.memory(), Memory { limit: 400, peak: 300 });
    }

    #[test]
    fn who_asks_first_is_served_first() {
        let budget = Budget::new(400, 1);
        let first = budget.working().take(200).unwrap();
        let (order, served) = bounded(2);
        thread::scope(|scope| {
            for (number, bytes) in [(1, 300), (2, 50)] {
                let (order, working) = (order.clone(), budget.working());
                scope.spawn(move || {
                    let permit = working.take(bytes);
                    order.send(number).unwrap();
                    drop(permit);
                });
                while working.lock().next <= number {
                    thread::yield_now();
                }
            }
            // The second would fit, but has to wait for the first.
            assert!(served.try_recv().is_err());
            drop(first);
        });
        assert_eq!(served.try_iter().count(), 2);
    }

    #[test]
    fn a_unit_is_open_until_its_last_permit_is_dropped() {
        let budget = Budget::new(400, 2);
        let (one, two) = (budget.open(), budget.open());
        let permit = one.take(1000).unwrap();
        assert_eq!(budget.memory().peak, 50, "half of a quarter");
        drop((one, two));
        drop(budget.open());
        assert_eq!(budget.tokens.1.len(), 1);
        drop(permit);
        assert_eq!(budget.tokens.1.len(), 2);
    }

    #[test]
    fn closing_wakes_who_waits() {
        let budget = Budget::new(400, 1);
        let all = budget.working().take(300);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.working().take(1).is_none());
            while budget.working().lock().next < 2 {
                thread::yield_now();
            }
            budget.close();
            assert!(waiting.join().unwrap());
        });
        drop(all);
    }
}
