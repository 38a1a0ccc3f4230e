//! The trainer: latents and embeddings from the stream, noise, U-Net, AdamW with f32 master weights
//! and EMA spread over the ranks of a process group, checkpoints with exact resume, metrics and pictures on the way.

mod checkpoint;
mod collective;
mod config;
mod data;
mod difference;
mod draws;
mod error;
mod fit;
mod gradient_buffers;
mod gradients;
pub mod grid;
mod health;
mod held_out;
mod identity;
mod job;
mod layout;
mod memory;
mod metrics;
mod objective;
mod optimizer;
mod order;
mod philox;
mod preview;
mod profiler;
mod prometheus;
mod records;
mod saver;
mod snapshot;
mod tensorboard;
mod trainer;
mod weights;
mod window;
mod world;

pub use checkpoint::{Checkpoints, Progress};
pub use config::{
    CheckpointConfig, EmaConfig, HealthConfig, LrSchedule, MixConfig, NotFinite, PhaseConfig, Precision,
    PreviewConfig, ProfileConfig, Sharding, SpikeAction, SpikeConfig, StreamingConfig, Timesteps,
    TrainConfig, ValidationConfig,
};
pub use data::{Batches, Data, Phase, Stored};
pub use difference::{Difference, differences};
pub use error::{Error, Refusal};
pub use gradients::Reduction;
pub use held_out::HeldOut;
pub use identity::is_same;
pub use job::{Activity, Job, Observer, Outcome, TextEncoder};
pub use metrics::{StepMetrics, Validation};
pub use optimizer::{Distribution, Optimizer};
pub use philox::{Draw, Purpose};
pub use preview::{Preview, decode, initial_noise};
pub use trainer::{schedule_of, train};
pub use world::World;
