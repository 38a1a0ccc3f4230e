//! The fields of a line of `metrics.jsonl`. Only the step is required: other versions of Tidemill, and
//! runs of other kinds, have fewer fields or more.

use serde::Deserialize;

/// A step's numbers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StepLine {
    pub step: u64,
    pub phase: u64,
    pub resolution: u32,
    pub samples: u64,
    pub loss: Option<f64>,
    pub grad_norm: Option<f64>,
    pub learning_rate: Option<f64>,
    pub images_per_second: Option<f64>,
    pub tflops: Option<f64>,
    pub mfu: Option<f64>,
    pub data_wait: Option<f64>,
    pub communication: Communication,
    pub memory_mib: Vec<f64>,
    pub gpu_memory_mib: Option<Vec<f64>>,
    pub telemetry: Vec<Telemetry>,
    pub loss_by_timestep: Vec<Option<f64>>,
    pub validation_loss: Option<f64>,
    pub validation_ema_loss: Option<f64>,
    pub validation_loss_by_timestep: Vec<Option<f64>>,
}

/// Seconds of a step in which ranks communicated.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Communication {
    pub gradients: Time,
    pub weights: Time,
    pub ranks: Time,
}

/// Seconds in flight, and those in which computation waited.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Time {
    pub busy: Option<f64>,
    pub exposed: f64,
}

/// What a rank's machine and GPU did.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Telemetry {
    pub host: Host,
    pub gpu: Option<Gpu>,
}

/// A machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Host {
    pub cpu: f64,
    pub memory_mib: f64,
    pub disk_read_mib: f64,
    pub disk_written_mib: f64,
    pub received_mib: f64,
    pub sent_mib: f64,
}

/// A GPU.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub utilization: f64,
    pub memory_mib: f64,
    pub power_w: f64,
    pub temperature_c: f64,
    pub sm_clock_mhz: f64,
}
