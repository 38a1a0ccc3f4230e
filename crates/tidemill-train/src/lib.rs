//! The trainer: latents and embeddings from the stream, noise, U-Net, AdamW with f32 master weights
//! and EMA spread over the ranks of a process group, checkpoints with exact resume, metrics and pictures on the way.

mod evaluation;
mod parallel;
mod checkpoint;
mod config;
mod data;
mod error;
mod metrics;
mod objective;
mod optimizer;
mod trainer;
mod run_spec;

pub use checkpoint::{Checkpoints, Progress};
pub use config::{
    CheckpointConfig, EmaConfig, HealthConfig, LrSchedule, MixConfig, NotFinite, PhaseConfig, Precision,
    PreviewConfig, ProfileConfig, Sharding, SpikeAction, SpikeConfig, StreamingConfig, Timesteps,
    TrainConfig, ValidationConfig,
};
pub use data::{Batches, Data, Phase, Stored};
pub use checkpoint::differences::{Difference, differences};
pub use error::{Error, Refusal};
pub use parallel::gradients::Reduction;
pub use evaluation::validation_set::HeldOut;
pub use checkpoint::run_identity::is_same;
pub use run_spec::{Activity, Job, Observer, Outcome, TextEncoder};
pub use metrics::{StepMetrics, Validation};
pub use optimizer::{Distribution, Optimizer};
pub use objective::philox::{Draw, Purpose};
pub use evaluation::preview::{Preview, decode, initial_noise};
pub use trainer::{schedule_of, train};
pub use parallel::world::World;
