//! How busy each stage is: the time its threads spend in its function over the time they exist. A stage near 100 % is
//! what limits the run.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

/// Adds up the time that any number of threads spend in one stage.
#[derive(Debug)]
pub struct Meter {
    stage: &'static str,
    threads: usize,
    busy_ns: AtomicU64,
}

/// A stage's share of busy time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Utilisation {
    /// The stage.
    pub stage: &'static str,
    /// Its threads.
    pub threads: usize,
    /// Seconds they worked, all together.
    pub busy_seconds: f64,
    /// Busy time over wall time, 0 to 1.
    pub utilisation: f64,
}

impl Meter {
    pub fn new(stage: &'static str, threads: usize) -> Self {
        Self { stage, threads, busy_ns: AtomicU64::new(0) }
    }

    /// Runs `work` as part of the stage.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.busy_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// The stage's utilisation over `seconds` of wall time.
    pub fn read(&self, seconds: f64) -> Utilisation {
        let busy_seconds = self.busy_ns.load(Ordering::Relaxed) as f64 / 1e9;
        let utilisation = busy_seconds / (seconds * self.threads as f64).max(1e-9);
        Utilisation { stage: self.stage, threads: self.threads, busy_seconds, utilisation }
    }
}

impl fmt::Display for Utilisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.0}%", self.stage, 100.0 * self.utilisation)
    }
}
