//! Everything that a training run is given.

use std::path::PathBuf;

use tidemill_models::{SchedulerConfig, TextEncoders, TextJoin, TrainableDenoiser};

use crate::config::{CheckpointConfig, TrainConfig};
use crate::data::TrainingData;
use crate::evaluation::preview::PreviewSampler;
use crate::evaluation::validation_set::ValidationSet;
use crate::parallel::world::World;

/// Frozen text encoders.
pub struct FrozenTextEncoders {
    /// The models.
    pub models: TextEncoders,
    /// The digests of the models' folders. A run resumes only with the same text encoders.
    pub digests: Vec<String>,
}

/// Everything that a training run needs. Each rank has its own; they differ only in `world`.
pub struct TrainSpec {
    /// `[train]`
    pub train: TrainConfig,
    /// `[checkpoint]`
    pub checkpoint: CheckpointConfig,
    /// The ranks that train together, and this process's rank.
    pub world: World,
    /// The run's seed.
    pub seed: u64,
    /// The folder for metrics and previews.
    pub output: PathBuf,
    /// The rows to train on.
    pub data: Box<dyn TrainingData>,
    /// The network to train, in f32, with its initial weights. Its parameters name the device to train on.
    pub denoiser: Box<dyn TrainableDenoiser>,
    /// The frozen encoders of captions for data that hold token ids, on the same device.
    pub text_encoders: Option<FrozenTextEncoders>,
    /// How the network takes the text of several encoders.
    pub text_join: TextJoin,
    /// The noise schedule in the model folder.
    pub scheduler: SchedulerConfig,
    /// The rows for the validation loss, if `train.validation` is set.
    pub validation_set: Option<ValidationSet>,
    /// What draws previews; `None` draws none.
    pub preview: Option<PreviewSampler>,
}
