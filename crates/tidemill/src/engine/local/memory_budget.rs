//! `engine.memory`: the bytes that a run's batches may take, from reading to writing. Whoever makes a batch takes a
//! [`Permit`] for it first and waits where there is no room; the permit is given back when the batch is dropped.
//!
//! A quarter is for *reading*, or more if a row group of the source needs it. Each reader has a part for what its unit
//! holds while it is read ([`InputUnit::held`](tidemill_data::InputUnit)), what it reads ahead and the batch in the
//! making; each open unit has a part for its batches, where a permit covers a batch until its last row is prepared. The
//! rest is for *working*, first come, first served: a permit covers a job's rows prepared and encoded, from before they
//! are handed to a worker until they are written.
//!
//! Nobody waits for ever:
//! - Writing, encoding and preparing wait for no permit, so work that is under way ends and frees its bytes.
//! - A feeder waits for the working part. What may lie still there is one unfinished encode batch per lane, and the
//!   part holds that much and a job more for each ([`least`] is refused otherwise, and rows count for no more than
//!   [`Plan::work_per_row`]): if a job does not fit, something else is under way.
//! - A reader's own part is there as long as it lives. For a batch it waits for its unit's part, where only batches lie
//!   that the unit's feeder will take. A batch larger than the whole part is let through alone and counts as the whole
//!   part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use serde::Serialize;

/// The part of the memory that is for reading, if units hold little: 1 / 4.
const READING: u64 = 4;

/// Units that may be open for each reader: the one it reads, and one that it has read and that waits for its turn.
const UNITS_PER_READER: usize = 2;

/// Batches' worth of room for each reader: what it reads ahead and the batch in the making; and two batches for each
/// open unit.
const ROOMS_PER_READER: u64 = 2 + 2 * UNITS_PER_READER as u64;

/// The memory of a run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What the batches in flight may take.
    pub limit: u64,
    /// The most that they took.
    pub peak: u64,
}

/// How the memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Units read at a time: fewer than wanted if they hold too much.
    pub readers: usize,
    /// Bytes of a batch as read, about.
    pub room: u64,
    /// Bytes that a unit holds while it is read, at most.
    held: u64,
    working: u64,
}

impl Plan {
    /// The plan for `limit` bytes, if they suffice for `working` bytes of work and units that hold up to `held`.
    pub fn new(limit: u64, working: u64, held: u64, readers: usize) -> Option<Self> {
        let reading = limit.div_ceil(READING).max(with_room(held));
        let working = limit.checked_sub(reading).filter(|rest| *rest >= working)?;
        let fit = reading.checked_div(with_room(held)).map_or(readers, |fit| fit as usize);
        let readers = fit.clamp(1, readers);
        let room = (reading - readers as u64 * held) / (readers as u64 * ROOMS_PER_READER);
        Some(Self { readers, room, held, working })
    }

    /// Bytes of the part for work that each of so many rows may take.
    pub fn work_per_row(&self, rows: u64) -> u64 {
        self.working / rows.max(1)
    }
}

/// The least memory for a plan.
pub fn least(working: u64, held: u64) -> u64 {
    (READING * working).div_ceil(READING - 1).max(working.saturating_add(with_room(held)))
}

/// What a reader needs whose unit holds that much.
fn with_room(held: u64) -> u64 {
    held.saturating_add(held.div_ceil(3))
}

/// All of the memory.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    plan: Plan,
    ledger: Arc<Ledger>,
    working: Arc<Share>,
    /// What readers hold.
    held: Arc<Share>,
    /// A token for each unit that may be opened.
    tokens: (Sender<()>, Receiver<()>),
}

impl Budget {
    /// `limit` bytes, divided as planned.
    pub fn new(limit: u64, plan: Plan) -> Self {
        let ledger = Arc::new(Ledger::default());
        let units = UNITS_PER_READER * plan.readers;
        let tokens = bounded(units);
        for _ in 0..units {
            // There is room for each.
            let _ = tokens.0.send(());
        }
        let working = Share::new(plan.working, &ledger, None);
        let held = Share::new(plan.readers as u64 * (plan.held + 2 * plan.room), &ledger, None);
        Self { limit, plan, ledger, working, held, tokens }
    }

    /// How the memory is divided.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// For a reader, while it reads a unit that holds so much. There is room for each; none if the run has failed.
    pub fn reader(&self, held: u64) -> Option<Permit> {
        self.held.take(held.min(self.plan.held) + 2 * self.plan.room)
    }

    /// The part for work.
    pub fn working(&self) -> &Arc<Share> {
        &self.working
    }

    /// Opens a unit: waits until a part for its batches is free. The part is free again when it and all its permits are
    /// dropped.
    pub fn open(&self) -> Arc<Share> {
        // The sender is alive.
        let _ = self.tokens.1.recv();
        Share::new(2 * self.plan.room, &self.ledger, Some(Token(self.tokens.0.clone())))
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

    /// A budget of 400 bytes, 300 of them for work.
    fn budget(readers: usize) -> Budget {
        Budget::new(400, Plan::new(400, 1, 0, readers).unwrap())
    }

    #[test]
    fn heavy_units_are_read_by_fewer_readers() {
        let plan = |limit, held| {
            let plan = Plan::new(limit, 300, held, 4)?;
            let reading = plan.readers as u64 * (plan.held + ROOMS_PER_READER * plan.room);
            assert!(reading + plan.working <= limit && plan.working >= 300, "{plan:?} of {limit}");
            Some((plan.readers, plan.room))
        };
        let cases = [
            ("nothing is held", 4800, 0, Some((4, 50))),
            ("there is room for all", 4800, 30, Some((4, 45))),
            ("half of them fit", 4800, 450, Some((2, 25))),
            ("one does", 4800, 900, Some((1, 50))),
            ("one does, with a larger part", 4800, 3000, Some((1, 166))),
            ("not even one", 4800, 3400, None),
            ("too little for the work", 399, 0, None),
        ];
        for (what, limit, held, expected) in cases {
            assert_eq!(plan(limit, held), expected, "{what}");
            let least = least(300, held);
            assert_eq!(limit >= least, expected.is_some(), "{what}: {least}");
            assert!(plan(least, held).is_some() && plan(least - 1, held).is_none(), "{what}: {least}");
        }
    }

    #[test]
    fn permits_never_exceed_the_limit() {
        let budget = budget(1);
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
        let budget = budget(1);
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
        let budget = budget(1);
        let (one, two) = (budget.open(), budget.open());
        let permit = one.take(1000).unwrap();
        assert_eq!(budget.memory().peak, 32, "two of six parts of a quarter");
        drop((one, two));
        drop(budget.open());
        assert_eq!(budget.tokens.1.len(), 1);
        drop(permit);
        assert_eq!(budget.tokens.1.len(), 2);
    }

    #[test]
    fn closing_wakes_who_waits() {
        let budget = budget(1);
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
