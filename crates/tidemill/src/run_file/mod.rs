//! The run file: one TOML document that describes a run. Each section's struct lives in the crate that uses it; here
//! they come together, and whatever no single section can see is checked.

mod document;
mod error;
mod portable;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_data::prepare::Crop;
use tidemill_data::random::seed_of_epoch;
use tidemill_data::source::{self, Source};
use tidemill_data::{CaptionConfig, ClipTokenizer, FilterConfig, Prepare, PrepareConfig, SourceConfig};
use tidemill_models::{ClipTextConfig, ModelFolder, VaeConfig};
use tidemill_store::dedup::DedupConfig;
use tidemill_train::{CheckpointConfig, TrainConfig};

pub use self::document::{Document, Place};
pub use self::error::RunFileError;
use crate::encode::config::EncodeConfig;
use crate::engine::config::{EngineConfig, Kind};
use crate::error::{Error, Result};
use crate::generate::SampleConfig;
use crate::online::config::OnlineConfig;
use crate::supervisor::SupervisorConfig;

/// Everything a run file can say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunFile {
    /// Name of the run, for people.
    pub name: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// Folder or URI under which the run writes; `runs/<name>` if empty.
    pub output: String,
    /// `[source]`: where the pairs are.
    pub source: SourceConfig,
    /// `[filter]`: which pairs are used.
    pub filter: FilterConfig,
    /// `[caption]`: how caption columns become text.
    pub caption: CaptionConfig,
    /// `[prepare]`: how images become pixels.
    pub prepare: PrepareConfig,
    /// `[dedup]`: which rows are duplicates of others.
    pub dedup: DedupConfig,
    /// `[models]`: the frozen models and the U-Net's shape.
    pub models: ModelsConfig,
    /// `[encode]`: how the frozen models are run.
    pub encode: EncodeConfig,
    /// `[validation]`: what is held out.
    pub validation: ValidationConfig,
    /// `[train]`: how the U-Net is trained.
    pub train: TrainConfig,
    /// `[checkpoint]`: when training is saved, and where.
    pub checkpoint: CheckpointConfig,
    /// `[supervisor]`: when a worker counts as lost.
    pub supervisor: SupervisorConfig,
    /// `[sample]`: the pictures drawn at the end.
    pub sample: SampleConfig,
    /// `[engine]`: who does the work.
    pub engine: EngineConfig,
    /// `[online]`: training on pairs as they come.
    pub online: OnlineConfig,
}

impl Default for RunFile {
    fn default() -> Self {
        Self {
            name: "run".into(),
            seed: 0,
            output: String::new(),
            source: SourceConfig::default(),
            filter: FilterConfig::default(),
            caption: CaptionConfig::default(),
            prepare: PrepareConfig::default(),
            dedup: DedupConfig::default(),
            models: ModelsConfig::default(),
            encode: EncodeConfig::default(),
            validation: ValidationConfig::default(),
            train: TrainConfig::default(),
            checkpoint: CheckpointConfig::default(),
            supervisor: SupervisorConfig::default(),
            sample: SampleConfig::default(),
            engine: EngineConfig::default(),
            online: OnlineConfig::default(),
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
    /// Share of the rows held out, in [0, 1), decided by sample id alone.
    pub share: f64,
}

/// A run file that has been read and checked, with its text for later messages.
#[derive(Debug, Clone)]
pub struct Run {
    /// What it says.
    pub file: RunFile,
    /// How it says it.
    pub document: Document,
}

impl Run {
    /// Reads a run file and puts the overrides (`section.key=value`) over it.
    ///
    /// # Errors
    /// A file that cannot be read, or a mistake in it.
    pub fn open(path: &Path, overrides: &[String]) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::Missing {
            what: format!("run file {}", path.display()),
            problem: e.to_string(),
            hint: "give the path of a TOML run file".into(),
        })?;
        Self::parse(&path.display().to_string(), &text, overrides)
    }

    /// As [`open`](Self::open), with the text of the file `name` given.
    ///
    /// # Errors
    /// A mistake in the text.
    pub fn parse(name: &str, text: &str, overrides: &[String]) -> Result<Self> {
        let document = Document::parse(name, text, overrides).map_err(Box::new)?;
        let file: RunFile = document.read().map_err(Box::new)?;
        let run = Self { file, document };
        run.validate()?;
        Ok(run)
    }

    /// The run's output folder.
    pub fn output(&self) -> String {
        match self.file.output.trim_end_matches('/') {
            "" => format!("runs/{}", self.file.name),
            output => output.to_string(),
        }
    }

    /// Where the latent dataset is.
    pub fn dataset(&self) -> String {
        self.output() + "/dataset"
    }

    /// The models' folder, checked to have every part.
    ///
    /// # Errors
    /// If the folder or a part of it is missing.
    pub fn models(&self) -> Result<ModelFolder> {
        if self.file.models.path.as_os_str().is_empty() {
            return Err(self.refuse("models.path", "name a model folder in the diffusers layout"));
        }
        ModelFolder::open(&self.file.models.path).map_err(|e| self.refuse("models.path", e.to_string()))
    }

    /// The pairs.
    ///
    /// # Errors
    /// If there are none, or they cannot be read.
    pub fn source(&self) -> Result<Box<dyn Source>> {
        let RunFile { source, filter, caption, .. } = &self.file;
        source::open(source, filter, caption).map_err(|e| self.locate(e))
    }

    /// The CPU stage.
    ///
    /// # Errors
    /// If the tokenizer cannot be read or the sections contradict each other.
    pub fn prepare(&self) -> Result<Prepare> {
        let RunFile { source, filter, caption, prepare, dedup, seed, .. } = &self.file;
        let prepare = &PrepareConfig { hashes: prepare.hashes || dedup.is_set(), ..prepare.clone() };
        let tokenizer = Arc::new(ClipTokenizer::open(&self.models()?.tokenizer())?);
        Prepare::new(prepare, filter, source, caption, *seed, tokenizer).map_err(|e| self.locate(e))
    }

    /// Checks that the models can take what `Prepare` gives, from their configurations alone.
    ///
    /// # Errors
    /// If a resolution does not suit the VAE.
    pub fn check_models(&self) -> Result<()> {
        let models = self.models()?;
        let vae = VaeConfig::read(&models.vae().join("config.json"))?;
        ClipTextConfig::read(&models.text_encoder().join("config.json"))?;
        let factor = vae.downscale_factor();
        let prepare = &self.file.prepare;
        let sizes = prepare.resolutions.iter().flat_map(|&resolution| prepare.sizes(resolution));
        let mut sides = sizes.flat_map(|(width, height)| [width, height]);
        match sides.find(|side| i64::from(*side) % factor != 0) {
            Some(side) => {
                let message = format!("{side} is no multiple of {factor}, the VAE's pixels per latent cell");
                let listed = if prepare.resolutions.contains(&side) { "resolutions" } else { "buckets" };
                Err(self.refuse(&format!("prepare.{listed}"), message))
            }
            None => Ok(()),
        }
    }

    /// An error about a key, with its place in the run file.
    pub fn refuse(&self, key: &str, message: impl Into<String>) -> Error {
        Box::new(self.document.error_at(key, message)).into()
    }

    /// Checks each section on its own. What depends on files is checked by the verb that opens them.
    fn validate(&self) -> Result<()> {
        let file = &self.file;
        if file.name.is_empty() || file.name.contains(['/', '\\']) {
            return Err(self.refuse("name", "must be a plain name, for folders are called after it"));
        }
        if file.output.starts_with("http://") || file.output.starts_with("https://") {
            return Err(self.refuse("output", "http can only be read; give a path, s3://, gs:// or az://"));
        }
        if !(0.0..1.0).contains(&file.validation.share) {
            return Err(self.refuse("validation.share", "must be at least 0 and less than 1"));
        }
        file.encode.validate().map_err(|(key, message)| self.refuse(key, message))?;
        file.engine.validate().map_err(|(key, message)| self.refuse(key, message))?;
        file.sample.validate().map_err(|(key, message)| self.refuse(key, message))?;
        file.filter.validate().map_err(|e| self.locate(e))?;
        file.caption.validate(&file.source.columns).map_err(|e| self.locate(e))?;
        file.dedup.validate().map_err(|e| self.locate(e))?;
        file.prepare.validate().map_err(|e| self.locate(e))?;
        self.validate_resolutions()
    }

    /// Whatever is trained or drawn must have been prepared.
    fn validate_resolutions(&self) -> Result<()> {
        let prepared = &self.file.prepare.resolutions;
        let phases = self.file.train.phase.iter().map(|phase| phase.resolution).enumerate();
        let phases = phases.map(|(i, resolution)| (format!("train.phase.{i}.resolution"), resolution));
        let sample =
            self.file.sample.resolution.map(|resolution| ("sample.resolution".to_string(), resolution));
        for (key, resolution) in phases.chain(sample) {
            if !prepared.contains(&resolution) {
                let message = format!("{resolution} is not prepared: prepare.resolutions is {prepared:?}");
                return Err(self.refuse(&key, message));
            }
        }
        Ok(())
    }

    /// What training needs.
    ///
    /// # Errors
    /// A value in `[train]` that makes no sense, no phase, or a phase whose images would be of several sizes.
    pub fn validate_train(&self) -> Result<()> {
        if self.file.output.contains("://") {
            let message = "training writes metrics and pictures into a local folder: give a path here, and put \
                           checkpoints into a bucket with checkpoint.uri";
            return Err(self.refuse("output", message));
        }
        if self.file.checkpoint.keep_every == Some(0) {
            return Err(self.refuse("checkpoint.keep_every", "must be at least 1"));
        }
        self.file.supervisor.validate().map_err(|(key, message)| self.refuse(key, message))?;
        self.file.train.validate().map_err(|e| self.locate(e))
    }

    /// What training on pairs as they come needs. `alone`: with encoders of this process.
    ///
    /// # Errors
    /// A setting that only a dataset can have.
    pub fn validate_online(&self, alone: bool) -> Result<()> {
        let file = &self.file;
        let without = "only with a dataset: preprocess first, or leave it out";
        if file.online.window == 0 {
            return Err(self.refuse("online.window", "must be at least 1"));
        }
        if file.dedup.is_set() {
            return Err(self.refuse("dedup", format!("duplicates are found {without}")));
        }
        if !file.train.mix.is_empty() {
            return Err(self.refuse("train.mix", format!("datasets are mixed {without}")));
        }
        if file.prepare.crop == Crop::Bucket {
            return Err(self.refuse("prepare.crop", format!("batches are made of buckets {without}")));
        }
        if file.engine.kind == Kind::Ray && alone {
            let message = "on Ray, pairs are encoded for workers of Ray Train: say which with [engine.train]";
            return Err(self.refuse("engine.kind", message));
        }
        Ok(())
    }

    /// The same run in another epoch: what is drawn at random differs, and in epoch 0 is what a dataset would have.
    #[must_use]
    pub fn in_epoch(&self, epoch: u64) -> Self {
        let mut run = self.clone();
        run.file.seed = seed_of_epoch(run.file.seed, epoch);
        run
    }

    /// The same run with images of one resolution only.
    #[must_use]
    pub fn at_resolution(&self, resolution: u32) -> Self {
        let mut run = self.clone();
        run.file.prepare.resolutions = vec![resolution];
        run
    }

    /// The resolution that training ends at and pictures are drawn at.
    pub fn resolution(&self) -> u32 {
        let last = self.file.train.phase.last().map(|phase| phase.resolution);
        let prepared = || self.file.prepare.resolutions.iter().copied().max().unwrap_or(0);
        self.file.sample.resolution.or(last).unwrap_or_else(prepared)
    }

    /// What every verb that reads pairs needs.
    ///
    /// # Errors
    /// A source without files, or columns that contradict each other.
    pub fn validate_source(&self) -> Result<()> {
        self.file.source.validate().map_err(|e| self.locate(e))
    }

    /// Gives a crate's error its place in the run file, where it is about a key.
    pub fn locate(&self, error: impl Into<Error>) -> Error {
        match error.into() {
            Error::Data(tidemill_data::Error::Config { key, problem }) => self.refuse(&key, problem),
            Error::Store(tidemill_store::Error::Config { key, problem }) => self.refuse(key, problem),
            Error::Train(tidemill_train::Error::Config { key, message }) => self.refuse(&key, message),
            Error::Data(error @ tidemill_data::Error::Uri { .. }) => {
                let message = error.to_string();
                let message = message.strip_prefix("source.uri ").unwrap_or(&message);
                self.refuse("source.uri", message)
            }
            error => error,
        }
    }
}
