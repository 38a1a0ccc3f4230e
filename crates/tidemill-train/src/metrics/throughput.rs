//! Throughput between two lines of metrics: images per second, TFLOP/s, and the share of time spent
//! waiting for data.

use std::time::{Duration, Instant};

/// Measures the time between two lines of metrics.
pub(crate) struct ThroughputWindow {
    started: Instant,
    data_wait: Duration,
}

/// What the steps of a window achieved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throughput {
    /// Images per second, over all ranks.
    pub images_per_second: f64,
    /// TFLOP/s of each rank.
    pub tflops_per_rank: f64,
    /// Share of the time that this rank spent waiting for data.
    pub data_wait: f64,
}

impl ThroughputWindow {
    /// Starts a window now.
    pub fn new() -> Self {
        Self { started: Instant::now(), data_wait: Duration::ZERO }
    }

    /// Counts time that was spent waiting for data.
    pub fn add_data_wait(&mut self, time: Duration) {
        self.data_wait += time;
    }

    /// Excludes time that was spent on something other than training, such as validation.
    pub fn exclude(&mut self, time: Duration) {
        self.started += time;
    }

    /// The throughput so far: `rows` over all ranks took `flops` floating-point operations on
    /// `ranks` ranks.
    pub fn throughput(&self, rows: f64, flops: f64, ranks: usize) -> Throughput {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        Throughput {
            images_per_second: rows / seconds,
            tflops_per_rank: flops / 1e12 / ranks as f64 / seconds,
            data_wait: self.data_wait.as_secs_f64() / seconds,
        }
    }
}
