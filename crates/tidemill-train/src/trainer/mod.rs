//! The trainer: set-up, one training loop, and a part for each concern.
//!
//! - `training_loop.rs`: `train`, the loop over phases and steps
//! - `setup/`: checks before the first step, and resume from the last checkpoint
//! - `noise_schedule.rs`: the noise schedule that a run trains with
//! - `step/`: one optimizer step, with noise prefetch and CUDA graphs
//! - `anomaly/`: NaN and loss spikes, skipped steps and rollback
//! - `gpu_setup.rs`: what a rank sets on its GPU before the first step
//! - `out_of_memory.rs`: what to lower when a step does not fit into the GPU's memory
//! - `checkpointer.rs`: when a checkpoint is due, in flight or committed
//! - `metrics_reporter.rs`: collects the results of steps and reports them
//! - `telemetry.rs`: what this rank's GPU and machine do

mod anomaly;
mod checkpointer;
mod gpu_setup;
mod metrics_reporter;
mod noise_schedule;
mod out_of_memory;
mod setup;
mod step;
mod telemetry;
mod training_loop;

pub use noise_schedule::training_scheduler_config;
pub use training_loop::train;
