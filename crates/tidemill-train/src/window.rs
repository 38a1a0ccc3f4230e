//! The time and the samples between two lines of metrics.

use std::time::Instant;

/// Starts with the first step after a line of metrics and ends with the next line.
pub(crate) struct Window {
    started: Instant,
    waited: f64,
    samples: usize,
}

impl Window {
    pub fn new() -> Self {
        Self { started: Instant::now(), waited: 0.0, samples: 0 }
    }

    /// Runs `fetch` as time spent waiting for data.
    pub fn waiting<T>(&mut self, fetch: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let fetched = fetch();
        self.waited += start.elapsed().as_secs_f64();
        fetched
    }

    /// A step on so many samples is done.
    pub fn add(&mut self, samples: usize) {
        self.samples += samples;
    }

    /// Images per second, and the share of time spent waiting for data.
    pub fn rates(&self) -> (f64, f64) {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        (self.samples as f64 / seconds, self.waited / seconds)
    }
}
