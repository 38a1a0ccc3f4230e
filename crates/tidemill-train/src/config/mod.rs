//! The run file's sections for training: `[train]` with its tables, and `[checkpoint]`. One file
//! per table. The checks that need neither a dataset nor a model are in `validate.rs`.

mod anomaly;
mod caption_dropout;
mod checkpoint;
mod cuda_graph;
mod ema;
mod health_check;
mod lr_schedule;
mod mix;
mod phase;
mod precision;
mod preview;
mod profile;
pub(crate) mod settings_diff;
mod streaming;
mod timestep_sampling;
mod train;
mod validate;
mod validation;

pub use self::anomaly::{NonFiniteAction, SpikeAction, SpikeConfig};
pub use self::caption_dropout::CaptionDropout;
pub use self::checkpoint::{CheckpointConfig, CheckpointWriters, KeepBestConfig};
pub use self::cuda_graph::CudaGraphMode;
pub use self::ema::EmaConfig;
pub use self::health_check::HealthCheckConfig;
pub use self::lr_schedule::LrSchedule;
pub use self::mix::MixConfig;
pub use self::phase::PhaseConfig;
pub use self::precision::Precision;
pub use self::preview::PreviewConfig;
pub use self::profile::ProfileConfig;
pub use self::streaming::StreamingConfig;
pub use self::timestep_sampling::TimestepSampling;
pub use self::train::TrainConfig;
pub use self::validation::ValidationConfig;
pub use tidemill_plan::memory::Sharding;
