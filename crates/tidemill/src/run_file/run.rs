//! A run: a run file that was read and checked, and what can be opened from it.

use std::path::Path;

use tidemill_data::random::epoch_seed;
use tidemill_data::source::{self, Source};
use tidemill_data::{Prepare, PrepareConfig};
use tidemill_models::{DenoiserConfig, ModelFolder, SchedulerConfig, TextJoin};
use tidemill_train::training_scheduler_config;

use super::document::Document;
use super::section_checks::check_sections;
use super::sections::RunFile;
use crate::encode::{SharedTokenizer, open_tokenizers};
use crate::error::{Error, Result};
use crate::hub::Repository;

/// A run file that was read and checked, with its text for later messages.
#[derive(Debug, Clone)]
pub struct Run {
    /// The values of all keys.
    pub file: RunFile,
    /// The text with its overrides.
    document: Document,
}

impl Run {
    /// Reads a run file and applies the overrides (`section.key=value`).
    ///
    /// # Errors
    /// If the file cannot be read or has a mistake.
    pub fn open(path: &Path, overrides: &[String]) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::Missing {
            what: format!("run file {}", path.display()),
            problem: e.to_string(),
            hint: "give the path of a TOML run file".into(),
        })?;
        Self::parse(&path.display().to_string(), &text, overrides)
    }

    /// Parses `text`, the content of the run file `name`, and applies the overrides.
    ///
    /// # Errors
    /// If the text or an override has a mistake.
    pub fn parse(name: &str, text: &str, overrides: &[String]) -> Result<Self> {
        let document = Document::parse(name, text, overrides).map_err(Box::new)?;
        let mut file: RunFile = document.deserialize().map_err(Box::new)?;
        check_sections(&file, &document)?;
        if let Some(best) = &mut file.checkpoint.keep_best {
            best.uri = best.uri.take().or_else(|| file.eval.uri.clone());
        }
        Ok(Self { file, document })
    }

    /// The output folder or URI.
    pub fn output(&self) -> String {
        match self.file.output.trim_end_matches('/') {
            "" => format!("runs/{}", self.file.name),
            output => output.to_string(),
        }
    }

    /// The location of the latent dataset.
    pub fn dataset(&self) -> String {
        self.output() + "/dataset"
    }

    /// Opens the models' folder and checks that it has every part. One of the Hub is downloaded first.
    ///
    /// # Errors
    /// If the folder or a part of it is missing, or the download fails.
    pub fn models(&self) -> Result<ModelFolder> {
        if self.file.models.path.as_os_str().is_empty() {
            return Err(self.refuse("models.path", "name a model folder in the diffusers layout"));
        }
        let path = &self.file.models.path;
        let folder = match Repository::parse(path) {
            Some(repository) => repository.and_then(|repository| repository.download()),
            None => Ok(path.clone()),
        };
        let folder = folder.map_err(|e| self.refuse("models.path", e.to_string()))?;
        ModelFolder::open(folder).map_err(|e| self.refuse("models.path", e.to_string()))
    }

    /// Opens the source of the pairs.
    ///
    /// # Errors
    /// If there are no pairs, or they cannot be read.
    pub fn source(&self) -> Result<Box<dyn Source>> {
        let RunFile { source, caption, .. } = &self.file;
        source::open(source, &self.source_filter(), caption).map_err(|e| self.locate(e))
    }

    /// Creates the `Prepare` stage, which runs on the CPU.
    ///
    /// # Errors
    /// If the tokenizer or the networks of `[score]` cannot be read, or sections contradict each other.
    pub fn prepare(&self) -> Result<Prepare> {
        let stage = self.prepare_without_scores()?;
        Ok(match self.computed_scores()? {
            Some(scores) => stage.with_scores(scores),
            None => stage,
        })
    }

    /// As [`prepare`](Self::prepare), for uses that compute no scores. Rows that a computed score would
    /// reject are kept.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_without_scores(&self) -> Result<Prepare> {
        let RunFile { source, caption, prepare, dedup, seed, .. } = &self.file;
        let prepare = &PrepareConfig {
            hashes: prepare.hashes || dedup.is_set(),
            // Scores and captions are made of whole images, as perceptual hashes are.
            scaled_decode: prepare.scaled_decode && !self.has_scores() && caption.stage.is_none(),
            ..prepare.clone()
        };
        let mut tokenizers = open_tokenizers(&self.models()?, &self.file.encode)?.into_iter();
        let first = tokenizers.next().ok_or_else(|| self.refuse("models.path", "it has no tokenizer"))?;
        let stage = Prepare::new(prepare, &self.source_filter(), source, caption, *seed, first)
            .map_err(|e| self.locate(e))?;
        let more: Vec<SharedTokenizer> = tokenizers.collect();
        Ok(if more.is_empty() { stage } else { stage.with_more_tokenizers(more) })
    }

    /// How the network of these models takes the text of several encoders.
    ///
    /// # Errors
    /// If the network's configuration cannot be read.
    pub fn text_join(&self, models: &ModelFolder) -> Result<TextJoin> {
        Ok(DenoiserConfig::read(models)?.text_join(self.file.encode.max_sequence_length.into()))
    }

    /// The noise schedule that this run trains with.
    ///
    /// # Errors
    /// If a setting has no meaning for it, or these models' network cannot be trained with it.
    pub fn training_schedule(&self, models: &ModelFolder) -> Result<SchedulerConfig> {
        let schedule = training_scheduler_config(&self.file.train, &models.scheduler()?)?;
        if models.has_transformer() && !schedule.is_flow() {
            let message = "Stable Diffusion 3's transformer predicts flow, and StableDiffusion3Pipeline samples nothing else: \
                           set \"flow_prediction\"";
            return Err(self.refuse("train.prediction", message));
        }
        Ok(schedule)
    }

    /// The resolution at which training ends and images are drawn.
    pub fn resolution(&self) -> u32 {
        let last = self.file.train.phase.last().map(|phase| phase.resolution);
        let largest = || self.file.prepare.resolutions.iter().copied().max().unwrap_or(0);
        self.file.sample.resolution.or(last).unwrap_or_else(largest)
    }

    /// The same run in another epoch: random choices differ. In epoch 0 they are those of a
    /// dataset.
    #[must_use]
    pub fn in_epoch(&self, epoch: u64) -> Self {
        let mut run = self.clone();
        run.file.seed = epoch_seed(run.file.seed, epoch);
        run
    }

    /// The same run with images of one resolution only.
    #[must_use]
    pub fn at_resolution(&self, resolution: u32) -> Self {
        let mut run = self.clone();
        run.file.prepare.resolutions = vec![resolution];
        run
    }

    /// Creates an error about a key, with its position in the run file.
    pub fn refuse(&self, key: &str, message: impl Into<String>) -> Error {
        self.document.refuse(key, message)
    }

    /// Adds the position in the run file to another crate's error that is about a key. Returns
    /// other errors unchanged.
    pub fn locate(&self, error: impl Into<Error>) -> Error {
        self.document.locate(error)
    }
}
