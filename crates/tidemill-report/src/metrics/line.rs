//! The fields of a line of `metrics.jsonl`. Only the step is required: other versions of Tidemill, and
//! runs of other kinds, have fewer fields or more.

use serde::Deserialize;
use tidemill_telemetry::Sample;

/// A step's numbers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StepLine {
    /// The step, from 1.
    pub step: u64,
    /// The phase, from 0.
    pub phase: u64,
    /// Pixels.
    pub resolution: u32,
    /// Samples trained on so far.
    pub samples: u64,
    /// Mean loss of the global batch.
    pub loss: Option<f64>,
    /// Global norm of the gradients before clipping.
    pub grad_norm: Option<f64>,
    /// Learning rate.
    pub learning_rate: Option<f64>,
    /// Images a second, over all ranks.
    pub images_per_second: Option<f64>,
    /// TFLOP/s of each rank.
    pub tflops: Option<f64>,
    /// Share of the device's peak.
    pub mfu: Option<f64>,
    /// Share of the time spent waiting for data.
    pub data_wait: Option<f64>,
    /// Seconds of the step in which ranks communicated.
    pub communication: Communication,
    /// Memory of each rank's process, in MiB.
    pub memory_mib: Vec<f64>,
    /// Peak memory of tensors on each rank's GPU, in MiB.
    pub gpu_memory_mib: Option<Vec<f64>>,
    /// What each rank's machine and GPU did.
    pub telemetry: Vec<Sample>,
    /// Mean loss in each tenth of the timesteps, from least noise.
    pub loss_by_timestep: Vec<Option<f64>>,
    /// Loss on the validation set.
    pub validation_loss: Option<f64>,
    /// The same with averaged weights.
    pub validation_ema_loss: Option<f64>,
    /// Validation loss in each tenth of the timesteps.
    pub validation_loss_by_timestep: Vec<Option<f64>>,
}

/// Seconds of a step in which ranks communicated.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Communication {
    /// Reducing gradients.
    pub gradients: Time,
    /// Gathering weights.
    pub weights: Time,
    /// Waiting for other ranks.
    pub ranks: Time,
}

/// Seconds in flight, and those in which computation waited.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Time {
    /// In flight, where that is measured.
    pub busy: Option<f64>,
    /// Computation waited.
    pub exposed: f64,
}
