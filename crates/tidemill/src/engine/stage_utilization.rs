//! How busy each stage is: the time its threads spend working over the time they exist. A stage
//! near 100 % limits the run.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Adds up the time that any number of threads spend in one stage.
#[derive(Debug)]
pub struct StageMeter {
    stage: &'static str,
    threads: Mutex<ThreadTime>,
    busy_ns: AtomicU64,
    rows: AtomicU64,
    retried: AtomicU64,
}

/// The current number of threads, and the total lifetime of the threads before the last resize.
#[derive(Debug)]
struct ThreadTime {
    threads: usize,
    since: Instant,
    thread_seconds: f64,
}

/// The totals of a meter at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct MeterReading {
    thread_seconds: f64,
    busy_ns: u64,
    rows: u64,
    retried: u64,
}

/// What a stage did between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StageUtilization {
    /// Name of the stage.
    pub stage: &'static str,
    /// Number of its threads.
    pub threads: usize,
    /// Rows that it worked on.
    pub rows: u64,
    /// Rows per second of wall time.
    pub rows_per_second: f64,
    /// Seconds that all its threads together spent working.
    pub busy_seconds: f64,
    /// Busy time over the time that its threads existed, 0 to 1.
    #[serde(rename = "utilisation")]
    pub utilization: f64,
    /// Batches that failed as a whole and were retried in parts.
    pub retried: u64,
}

impl StageMeter {
    /// A meter of a stage that starts with this number of threads.
    pub fn new(stage: &'static str, threads: usize) -> Self {
        let threads = Mutex::new(ThreadTime { threads, since: Instant::now(), thread_seconds: 0.0 });
        let (busy_ns, rows, retried) = Default::default();
        Self { stage, threads, busy_ns, rows, retried }
    }

    /// Runs `work` and counts its duration as busy time.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.busy_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Counts rows that the stage has worked on.
    pub fn add_rows(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Counts a batch that is retried in parts.
    pub fn add_retry(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the number of threads from now on.
    pub fn set_threads(&self, threads: usize) {
        let mut time = self.lock_threads();
        time.thread_seconds = time.thread_seconds();
        (time.threads, time.since) = (threads, Instant::now());
    }

    /// The totals so far.
    pub fn read(&self) -> MeterReading {
        MeterReading {
            thread_seconds: self.lock_threads().thread_seconds(),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            retried: self.retried.load(Ordering::Relaxed),
        }
    }

    /// What the stage did since an earlier reading, `seconds` of wall time ago.
    pub fn utilization_since(&self, before: &MeterReading, seconds: f64) -> StageUtilization {
        let now = self.read();
        let busy_seconds = (now.busy_ns - before.busy_ns) as f64 / 1e9;
        let rows = now.rows - before.rows;
        StageUtilization {
            stage: self.stage,
            threads: self.lock_threads().threads,
            rows,
            rows_per_second: rows as f64 / seconds.max(1e-9),
            busy_seconds,
            utilization: busy_seconds / (now.thread_seconds - before.thread_seconds).max(1e-9),
            retried: now.retried - before.retried,
        }
    }

    fn lock_threads(&self) -> MutexGuard<'_, ThreadTime> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadTime {
    fn thread_seconds(&self) -> f64 {
        self.thread_seconds + self.threads as f64 * self.since.elapsed().as_secs_f64()
    }
}

impl fmt::Display for StageUtilization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, threads, rows_per_second, utilization, .. } = self;
        write!(f, "{stage} x{threads} {:.0}% {rows_per_second:.0}/s", 100.0 * utilization)
    }
}
