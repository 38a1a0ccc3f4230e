//! What this rank's GPU and machine do while it trains.

use tch::Device;
use tidemill_telemetry::{Sample, Sampler};

use crate::Error;
use crate::train_spec::TrainSpec;

/// Reads this rank's GPU and machine until it is dropped.
pub(crate) struct Telemetry {
    sampler: Sampler,
    rank: usize,
    /// Whether the run continues without a rank whose GPU is broken.
    excludes_ranks: bool,
}

impl Telemetry {
    /// Starts to read.
    pub fn start(spec: &TrainSpec) -> Self {
        let gpu = match spec.denoiser.params().device() {
            Device::Cuda(index) => u32::try_from(index).ok(),
            _ => None,
        };
        Self {
            sampler: Sampler::start(gpu),
            rank: spec.world.rank(),
            excludes_ranks: spec.train.health.exclude,
        }
    }

    /// The last seconds. None before the first sample.
    pub fn summary(&self) -> Option<Sample> {
        self.sampler.summary()
    }

    /// Fails if the driver reports that the GPU must not be used any more.
    pub fn check_gpu(&self) -> Result<(), Error> {
        let Some(fault) = self.sampler.fault() else { return Ok(()) };
        let rank = self.rank;
        let message = format!("rank {rank}: its GPU is broken: {fault}; reset or replace it");
        match self.excludes_ranks {
            true => Err(Error::Straggler { rank, message }),
            false => Err(Error::World(message)),
        }
    }
}
