//! The trainer: set-up, one training loop, and a part for each concern. The step runner computes
//! steps, the checkpointer saves the run, the metrics reporter shows it, and the anomaly tracker
//! handles NaN and loss spikes.

mod anomaly;
mod checkpointer;
mod metrics_reporter;
mod noise_schedule;
mod setup;
mod step;
mod training_loop;

pub use noise_schedule::training_scheduler_config;
pub use training_loop::train;
