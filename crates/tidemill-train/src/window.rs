//! The time between two lines of metrics.

use std::time::Instant;

/// Starts with the first step after a line of metrics and ends with the next line.
pub(crate) struct Window {
    started: Instant,
    waited: f64,
}

impl Window {
    pub fn new() -> Self {
        Self { started: Instant::now(), waited: 0.0 }
    }

    /// Runs `fetch` as time spent waiting for data.
    pub fn waiting<T>(&mut self, fetch: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let fetched = fetch();
        self.waited += start.elapsed().as_secs_f64();
        fetched
    }

    /// Images per second if so many were trained on, and the share of time spent waiting for data.
    pub fn rates(&self, samples: u64) -> (f64, f64) {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        (samples as f64 / seconds, self.waited / seconds)
    }
}
