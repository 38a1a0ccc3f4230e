//! Noise schedules: the scheduler's configuration, noise at each timestep, training targets and
//! min-SNR weights.

mod config;
mod noise_schedule;

pub use config::{BetaSchedule, PredictionType, SchedulerConfig, SchedulerForm, TimestepSpacing};
pub use noise_schedule::NoiseSchedule;
