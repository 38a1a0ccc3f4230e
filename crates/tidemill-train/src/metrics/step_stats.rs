//! The time between two lines of metrics.

use std::time::{Duration, Instant};

/// Starts with the first step after a line of metrics and ends with the next line.
pub(crate) struct Window {
    started: Instant,
    waited: f64,
}

impl Window {
    pub fn new() -> Self {
        Self { started: Instant::now(), waited: 0.0 }
    }

    /// So long was spent waiting for data.
    pub fn add_waited(&mut self, passed: Duration) {
        self.waited += passed.as_secs_f64();
    }

    /// Leaves out what has passed of it with something else than training.
    pub fn leave_out(&mut self, passed: Duration) {
        self.started += passed;
    }

    /// Seconds so far, and how many of them were spent waiting for data.
    pub fn seconds(&self) -> (f64, f64) {
        (self.started.elapsed().as_secs_f64().max(1e-9), self.waited)
    }
}
