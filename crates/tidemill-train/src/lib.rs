//! The trainer: latents and embeddings from the stream, noise, U-Net, AdamW with f32 master weights
//! and EMA, checkpoints with exact resume, metrics and pictures on the way.

mod checkpoint;
mod config;
mod error;
mod fit;
mod flat;
pub mod grid;
mod job;
mod metrics;
mod objective;
mod optimizer;
mod philox;
mod preview;
mod saver;
mod tensorboard;
mod trainer;
mod window;

pub use checkpoint::{Checkpoints, Progress};
pub use config::{
    CheckpointConfig, EmaConfig, LrSchedule, MixConfig, NotFinite, PhaseConfig, Precision, PreviewConfig,
    StreamingConfig, TrainConfig,
};
pub use error::Error;
pub use job::{Job, Observer, Outcome, TextEncoder};
pub use metrics::StepMetrics;
pub use objective::{Inputs, Objective, Rows};
pub use optimizer::Optimizer;
pub use philox::{Draw, Purpose};
pub use preview::{Preview, decode, initial_noise};
pub use tensorboard::EventWriter;
pub use trainer::{schedule_of, train};
