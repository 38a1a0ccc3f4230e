//! Noise schedules: the scheduler's configuration, noise at each timestep, training targets and
//! min-SNR weights.
//!
//! - `config.rs`: `scheduler_config.json`
//! - `flow_shift.rs`: the shift of rectified flow, fixed or by the size of the image
//! - `edm.rs`: the noise levels of EDM
//! - `noise_schedule.rs`: the noise levels of all timesteps
//! - `noise_levels.rs`: those of a batch, its inputs, targets and loss weights

mod config;
mod edm;
mod flow_shift;
mod noise_levels;
mod noise_schedule;

pub(crate) use config::NoiseProcess;
pub use config::{BetaSchedule, PredictionType, SchedulerConfig, SchedulerForm, TimestepSpacing};
pub use edm::{EdmConfig, SigmaSchedule};
pub(crate) use flow_shift::shift_flow;
pub use flow_shift::{DynamicShift, FlowShift};
pub use noise_levels::NoiseLevels;
pub use noise_schedule::NoiseSchedule;
