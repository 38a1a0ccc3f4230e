//! The trainer: it reads latents and text embeddings from a stream, adds noise, and trains a
//! denoiser with AdamW, f32 master weights and EMA, which the ranks of a process group share. It
//! saves checkpoints with exact resume, and reports metrics, validation losses and previews.
//!
//! - `trainer/`: set-up, the training loop, one optimizer step, NaN and loss spikes
//! - `train_spec.rs`, `observer.rs`, `outcome.rs`: what a run is given, its callbacks, its result
//! - `config/`: the sections of the run file
//! - `data/`: batches to train on
//! - `objective/`: noise, timesteps and the loss
//! - `optimizer/`, `parallel/`: AdamW and EMA; ranks, gradients and weights between them
//! - `checkpoint/`: saving, loading and resharding
//! - `metrics/`, `evaluation/`: metrics, profiles, validation loss, previews

mod checkpoint;
mod config;
mod data;
mod error;
mod evaluation;
mod metrics;
mod objective;
mod observer;
mod optimizer;
mod outcome;
mod parallel;
mod train_spec;
mod trainer;

pub use checkpoint::best::select_best;
pub use checkpoint::run_identity::is_same_identity;
pub use checkpoint::{Checkpoints, Progress};
pub use config::settings_diff::{Difference, find_differences};
pub use config::{
    CheckpointConfig, EmaConfig, HealthCheckConfig, LrSchedule, MixConfig, NonFiniteAction, PhaseConfig,
    Precision, PreviewConfig, ProfileConfig, Sharding, SpikeAction, SpikeConfig, StreamingConfig,
    TimestepSampling, TrainConfig, ValidationConfig,
};
pub use data::{BatchStream, Phase, StoredDatasets, TrainingData};
pub use error::{Error, RankError};
pub use evaluation::image_grid;
pub use evaluation::preview::{PreviewSampler, decode_latents, draw_initial_noise};
pub use evaluation::validation_set::ValidationSet;
pub use metrics::{EventWriter, PrometheusEndpoint, StepMetrics, ValidationMetrics};
pub use objective::philox::{Draw, Purpose};
pub use observer::{Activity, Observer};
pub use optimizer::{Optimizer, ShardingPlan};
pub use outcome::TrainOutcome;
pub use parallel::gradient_reduction::{GradientAccumulation, GradientReduction};
pub use parallel::world::World;
pub use train_spec::{FrozenTextEncoders, TrainSpec};
pub use trainer::{train, training_scheduler_config};
