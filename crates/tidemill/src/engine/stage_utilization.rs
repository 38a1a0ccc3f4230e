//! How busy each stage is: the time its threads spend in its function over the time they exist. A stage near 100 % is
//! what limits the run.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Adds up the time that any number of threads spend in one stage.
#[derive(Debug)]
pub struct Meter {
    stage: &'static str,
    pool: Mutex<Pool>,
    busy_ns: AtomicU64,
    rows: AtomicU64,
    retried: AtomicU64,
}

/// The threads there are, and the time that those before them existed.
#[derive(Debug)]
struct Pool {
    threads: usize,
    since: Instant,
    thread_seconds: f64,
}

/// What a meter says at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    thread_seconds: f64,
    busy_ns: u64,
    rows: u64,
    retried: u64,
}

/// A stage's share of busy time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Utilisation {
    /// The stage.
    pub stage: &'static str,
    /// Its threads.
    pub threads: usize,
    /// Rows it was given.
    pub rows: u64,
    /// Rows over wall time.
    pub rows_per_second: f64,
    /// Seconds its threads worked, all together.
    pub busy_seconds: f64,
    /// Busy time over the time its threads existed, 0 to 1.
    pub utilisation: f64,
    /// Batches that failed as a whole and were tried again in parts.
    pub retried: u64,
}

impl Meter {
    pub fn new(stage: &'static str, threads: usize) -> Self {
        let pool = Mutex::new(Pool { threads, since: Instant::now(), thread_seconds: 0.0 });
        let (busy_ns, rows, retried) = Default::default();
        Self { stage, pool, busy_ns, rows, retried }
    }

    /// Runs `work` as part of the stage.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.busy_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Counts rows that the stage has worked on.
    pub fn count(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Counts a batch that must be tried again.
    pub fn retry(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }

    /// Says that there are so many threads from now on.
    pub fn resize(&self, threads: usize) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.thread_seconds = pool.thread_seconds();
        (pool.threads, pool.since) = (threads, Instant::now());
    }

    pub fn read(&self) -> Reading {
        Reading {
            thread_seconds: self.pool.lock().unwrap_or_else(PoisonError::into_inner).thread_seconds(),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            retried: self.retried.load(Ordering::Relaxed),
        }
    }

    /// The stage's utilisation since an earlier reading, `seconds` of wall time ago.
    pub fn since(&self, before: &Reading, seconds: f64) -> Utilisation {
        let now = self.read();
        let busy_seconds = (now.busy_ns - before.busy_ns) as f64 / 1e9;
        let rows = now.rows - before.rows;
        Utilisation {
            stage: self.stage,
            threads: self.pool.lock().unwrap_or_else(PoisonError::into_inner).threads,
            rows,
            rows_per_second: rows as f64 / seconds.max(1e-9),
            busy_seconds,
            utilisation: busy_seconds / (now.thread_seconds - before.thread_seconds).max(1e-9),
            retried: now.retried - before.retried,
        }
    }
}

impl Pool {
    fn thread_seconds(&self) -> f64 {
        self.thread_seconds + self.threads as f64 * self.since.elapsed().as_secs_f64()
    }
}

impl fmt::Display for Utilisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, threads, rows_per_second, utilisation, .. } = self;
        write!(f, "{stage} x{threads} {:.0}% {rows_per_second:.0}/s", 100.0 * utilisation)
    }
}
