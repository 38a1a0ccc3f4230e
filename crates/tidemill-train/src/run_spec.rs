//! What a training run is given, who watches it, and what comes of it.

use std::path::PathBuf;

use tidemill_models::{ClipTextModel, SchedulerConfig, TrainableDenoiser};

use crate::config::{CheckpointConfig, TrainConfig};
use crate::data::TrainingData;
use crate::evaluation::preview::PreviewSampler;
use crate::evaluation::validation_set::ValidationSet;
use crate::metrics::StepMetrics;
use crate::parallel::world::World;

/// A frozen text encoder.
pub struct TextEncoder {
    /// The model.
    pub model: ClipTextModel,
    /// The digest of its folder. A run goes on only with the same.
    pub digest: String,
}

/// Everything a training run needs. Of several ranks each has one, the same but for `world`.
pub struct TrainSpec {
    /// `[train]`
    pub train: TrainConfig,
    /// `[checkpoint]`
    pub checkpoint: CheckpointConfig,
    /// The ranks that train together, and which of them this is.
    pub world: World,
    /// The run's seed.
    pub seed: u64,
    /// The folder for metrics and pictures.
    pub output: PathBuf,
    /// What it is trained on.
    pub data: Box<dyn TrainingData>,
    /// What is trained, in f32, on the device to train on, with its first weights.
    pub denoiser: Box<dyn TrainableDenoiser>,
    /// Encodes the captions of data that hold token ids: on the same device, frozen.
    pub text_encoder: Option<TextEncoder>,
    /// The noise schedule of the model folder.
    pub scheduler: SchedulerConfig,
    /// What `train.validation` takes the loss of.
    pub validation_set: Option<ValidationSet>,
    /// What previews need; `None` draws none.
    pub preview: Option<PreviewSampler>,
}

/// Who watches a run, and may stop it.
pub trait Observer {
    /// A step's metrics are there.
    fn on_step(&mut self, metrics: &StepMetrics, total: u64);
    /// Something else happened that a person wants to read.
    fn log(&mut self, message: &str);
    /// Whether to checkpoint and stop (SIGTERM, ctrl-c).
    fn should_stop(&self) -> bool;
    /// What comes next, after so many steps.
    fn on_activity(&mut self, _step: u64, _activity: Activity) {}
    /// There is a checkpoint of this step.
    fn on_checkpoint(&mut self, _step: u64) {}
}

/// What a trainer may be doing for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Waiting for rows.
    WaitForData,
    /// A step, or waiting for others to begin with it.
    Step,
    /// Waiting for the last checkpoint.
    FinalCheckpoint,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TrainOutcome {
    /// Steps done, those before a resume included.
    pub steps: u64,
    /// Whether all phases are done.
    pub finished: bool,
    /// Mean loss of the last steps.
    pub loss: Option<f64>,
    /// Images per second over this process's steps.
    pub images_per_second: f64,
    /// Wall-clock seconds of this process's steps.
    pub seconds: f64,
    /// The step this process resumed at, 0 for a new run.
    pub resumed_at: u64,
    /// Rows that this process's steps went without because they could not be read.
    pub skipped_rows: u64,
    /// Steps of this process that left the weights as they were, because loss or gradient were not what they should be.
    pub skipped_steps: u64,
    /// Times that this process went back to a checkpoint for the same reason.
    pub rollbacks: u64,
    /// Seconds that steps waited for checkpoints.
    pub checkpoint_seconds: f64,
}
