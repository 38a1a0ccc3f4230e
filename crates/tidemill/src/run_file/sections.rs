//! All sections of the run file, with their defaults.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_data::{CaptionConfig, FilterConfig, PrepareConfig, SourceConfig};
use tidemill_eval::pair_scores::PairScoreConfig;
use tidemill_plan::PlanConfig;
use tidemill_store::dedup::DedupConfig;
use tidemill_train::{CheckpointConfig, TrainConfig};

use crate::encode::config::EncodeConfig;
use crate::engine::config::EngineConfig;
use crate::evaluation::config::EvalConfig;
use crate::online::config::OnlineConfig;
use crate::sampling::config::SampleConfig;
use crate::supervisor::config::SupervisorConfig;
use crate::tracking::TrackConfig;

/// Everything that a run file can contain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunFile {
    /// Name of the run, for people.
    pub name: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// Folder or URI to which the run writes; `runs/<name>` if empty.
    pub output: String,
    /// `[source]`: where the pairs are.
    pub source: SourceConfig,
    /// `[filter]`: which pairs are used.
    pub filter: FilterConfig,
    /// `[score]`: scores that are computed of pairs, for filters.
    pub score: PairScoreConfig,
    /// `[caption]`: how caption columns become text.
    pub caption: CaptionConfig,
    /// `[prepare]`: how images become pixels.
    pub prepare: PrepareConfig,
    /// `[dedup]`: which rows are duplicates of others.
    pub dedup: DedupConfig,
    /// `[models]`: the frozen models and the shape of the U-Net.
    pub models: ModelsConfig,
    /// `[encode]`: how the frozen models are run.
    pub encode: EncodeConfig,
    /// `[validation]`: the share of the rows that is held out of training.
    pub validation: ValidationConfig,
    /// `[train]`: how the U-Net is trained.
    pub train: TrainConfig,
    /// `[checkpoint]`: when and where training state is saved.
    pub checkpoint: CheckpointConfig,
    /// `[track]`: the experiment trackers that follow training.
    pub track: TrackConfig,
    /// `[supervisor]`: after how long a training worker counts as lost.
    pub supervisor: SupervisorConfig,
    /// `[sample]`: the images drawn after training.
    pub sample: SampleConfig,
    /// `[eval]`: how checkpoints are judged.
    pub eval: EvalConfig,
    /// `[engine]`: threads, memory and machines that do the work.
    pub engine: EngineConfig,
    /// `[online]`: training on pairs that are encoded while training runs.
    pub online: OnlineConfig,
    /// `[plan]`: machines, prices and rates, for `tidemill plan`.
    pub plan: PlanConfig,
}

impl Default for RunFile {
    fn default() -> Self {
        Self {
            name: "run".into(),
            seed: 0,
            output: String::new(),
            source: SourceConfig::default(),
            filter: FilterConfig::default(),
            score: PairScoreConfig::default(),
            caption: CaptionConfig::default(),
            prepare: PrepareConfig::default(),
            dedup: DedupConfig::default(),
            models: ModelsConfig::default(),
            encode: EncodeConfig::default(),
            validation: ValidationConfig::default(),
            train: TrainConfig::default(),
            checkpoint: CheckpointConfig::default(),
            track: TrackConfig::default(),
            supervisor: SupervisorConfig::default(),
            sample: SampleConfig::default(),
            eval: EvalConfig::default(),
            engine: EngineConfig::default(),
            online: OnlineConfig::default(),
            plan: PlanConfig::default(),
        }
    }
}

/// `[models]`: a folder in the diffusers layout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelsConfig {
    /// Folder with `vae/`, `text_encoder/`, `tokenizer/`, `scheduler/` and `unet/config.json`.
    pub path: PathBuf,
}

/// `[validation]`: rows that are encoded but never trained on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValidationConfig {
    /// Share of the rows to hold out, in [0, 1). The sample id alone decides which rows.
    pub share: f64,
}
