//! The trainer: latents and embeddings from the stream, noise, U-Net, AdamW with f32 master weights
//! and EMA spread over the ranks of a process group, checkpoints with exact resume, metrics and pictures on the way.

mod checkpoint;
mod config;
mod data;
mod error;
mod evaluation;
mod metrics;
mod objective;
mod optimizer;
mod parallel;
mod run_spec;
mod trainer;

pub use checkpoint::differences::{Difference, differences};
pub use checkpoint::run_identity::is_same;
pub use checkpoint::{Checkpoints, Progress};
pub use config::{
    CheckpointConfig, EmaConfig, HealthConfig, LrSchedule, MixConfig, NotFinite, PhaseConfig, Precision,
    PreviewConfig, ProfileConfig, Sharding, SpikeAction, SpikeConfig, StreamingConfig, Timesteps,
    TrainConfig, ValidationConfig,
};
pub use data::{BatchStream, Phase, StoredDatasets, TrainingData};
pub use error::{Error, RankError};
pub use evaluation::image_grid;
pub use evaluation::preview::{PreviewSampler, decode_latents, draw_initial_noise};
pub use evaluation::validation_set::ValidationSet;
pub use metrics::{StepMetrics, ValidationMetrics};
pub use objective::philox::{Draw, Purpose};
pub use optimizer::{Distribution, Optimizer};
pub use parallel::gradients::Reduction;
pub use parallel::world::World;
pub use run_spec::{Activity, Observer, TextEncoder, TrainOutcome, TrainSpec};
pub use trainer::{train, training_scheduler_config};
