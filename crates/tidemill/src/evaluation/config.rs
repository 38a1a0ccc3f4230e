//! `[eval]` of the run file: how checkpoints are judged.

use serde::{Deserialize, Serialize};
use tidemill_data::SourceConfig;
use tidemill_eval::images::InceptionResize;
use tidemill_models::sampler::SamplerMethod;

use super::metric::{Metric, Tower};
use super::models::EvalModels;

/// The value of `eval.prompts` that stands for the captions of the held-out rows.
pub const HELDOUT_CAPTIONS: &str = "captions";

/// `[eval]`: the images that are drawn from each checkpoint, and how they are judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// A file of prompts: text (one per line), CSV, TSV or Parquet; or `captions` for the captions
    /// of the held-out rows.
    pub prompts: Option<String>,
    /// The column of the prompts in CSV, TSV and Parquet. Default: the first of `prompt`, `prompts`,
    /// `caption` and `text` that there is, in upper or lower case.
    pub prompt_column: Option<String>,
    /// The column of the categories. Default: `category`, if there is one.
    pub category_column: Option<String>,
    /// The number of prompts that are used, from the start of the file. Default: all.
    pub limit: Option<usize>,
    /// The number of additional prompts, from the held-out combinations of the synthetic scenes.
    /// Their images are scored by rule.
    pub scenes: usize,
    /// Images per prompt.
    pub images: usize,
    /// Guidance scales; images are drawn with each. Default: `[sample] guidance`.
    pub guidance: Vec<f64>,
    /// The sampler. Default: that of `[sample]`.
    pub method: Option<SamplerMethod>,
    /// Sampler steps. Default: those of `[sample]`.
    pub steps: Option<usize>,
    /// Side of the images in pixels. Default: that of `[sample]`.
    pub resolution: Option<u32>,
    /// What is measured. Default: all metrics whose model is given.
    pub metrics: Vec<Metric>,
    /// `[eval.models]`: the networks that judge.
    pub models: EvalModels,
    /// `[eval.reference]`: the images that generated ones are compared with.
    pub reference: ReferenceConfig,
    /// How images are resized for InceptionV3.
    pub inception_resize: InceptionResize,
    /// The neighbour to which the balls of precision and recall reach.
    pub neighbours: usize,
    /// Random subsets of KID.
    pub kid_subsets: usize,
    /// Images in a subset of KID; fewer if there are fewer images.
    pub kid_subset_size: usize,
    /// Images that one evaluator draws and commits at a time.
    pub block: usize,
    /// Whether the pictures are stored.
    pub pictures: bool,
    /// Folder or URI of the evaluations. Default: `evaluations` in the run's output.
    pub uri: Option<String>,
    /// Seconds without a sign of life after which a block of a dead evaluator is taken over.
    pub lease_seconds: u64,
    /// Seconds between two looks for new checkpoints with `--watch`.
    pub poll_seconds: u64,
    /// Address of a page for Prometheus with the last record, such as `0.0.0.0:9101`.
    pub prometheus: Option<String>,
}

/// `[eval.reference]`: the reference images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReferenceConfig {
    /// Where the images are. Default: the run's own pairs. They are filtered, cropped and resized as
    /// for training.
    pub source: Option<SourceConfig>,
    /// Statistics of the images, in place of the images.
    pub statistics: StatisticsFiles,
    /// The number of images that are used, from the start of the source. Default: all.
    pub images: Option<u64>,
    /// The number of images whose features are kept for KID, CMMD, precision and recall.
    pub sample: usize,
}

/// `[eval.reference.statistics]`: files that `tidemill eval FOLDER --save-statistics` or an earlier
/// evaluation wrote, as paths or URIs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatisticsFiles {
    /// Of InceptionV3's features.
    pub inception: Option<String>,
    /// Of CLIP's features.
    pub clip: Option<String>,
    /// Of DINOv2's features.
    pub dinov2: Option<String>,
}

impl StatisticsFiles {
    /// The file of a tower.
    pub fn of(&self, tower: Tower) -> Option<&str> {
        match tower {
            Tower::Inception => self.inception.as_deref(),
            Tower::Clip => self.clip.as_deref(),
            Tower::Dinov2 => self.dinov2.as_deref(),
        }
    }
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self {
            prompts: None,
            prompt_column: None,
            category_column: None,
            limit: None,
            scenes: 0,
            images: 1,
            guidance: Vec::new(),
            method: None,
            steps: None,
            resolution: None,
            metrics: Vec::new(),
            models: EvalModels::default(),
            reference: ReferenceConfig::default(),
            inception_resize: InceptionResize::default(),
            neighbours: 5,
            kid_subsets: 100,
            kid_subset_size: 1000,
            block: 64,
            pictures: true,
            uri: None,
            lease_seconds: 60,
            poll_seconds: 10,
            prometheus: None,
        }
    }
}

impl Default for ReferenceConfig {
    fn default() -> Self {
        Self { source: None, statistics: StatisticsFiles::default(), images: None, sample: 10_000 }
    }
}

impl EvalConfig {
    /// Whether the section asks for any image.
    pub fn has_prompts(&self) -> bool {
        self.prompts.is_some() || self.scenes > 0
    }

    /// What is measured: `metrics`, or all that need no more than what is given.
    pub fn chosen_metrics(&self) -> Vec<Metric> {
        if !self.metrics.is_empty() {
            return self.metrics.clone();
        }
        let is_possible = |metric: &Metric| {
            metric.missing_model(&self.models).is_none() && (*metric != Metric::SceneScore || self.scenes > 0)
        };
        Metric::ALL.into_iter().filter(is_possible).collect()
    }

    /// Checks the section on its own.
    ///
    /// # Errors
    /// A key, and what is wrong with its value.
    pub(crate) fn validate(&self) -> std::result::Result<(), (String, String)> {
        let at_least_one = [
            ("images", self.images),
            ("block", self.block),
            ("neighbours", self.neighbours),
            ("kid_subsets", self.kid_subsets),
            ("reference.sample", self.reference.sample),
            ("limit", self.limit.unwrap_or(1)),
            ("reference.images", self.reference.images.unwrap_or(1) as usize),
            ("lease_seconds", self.lease_seconds as usize),
            ("poll_seconds", self.poll_seconds as usize),
        ];
        if let Some((key, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err((format!("eval.{key}"), "must be at least 1".into()));
        }
        if self.kid_subset_size < 2 {
            return Err(("eval.kid_subset_size".into(), "must be at least 2".into()));
        }
        if self.guidance.iter().any(|scale| !scale.is_finite()) {
            return Err(("eval.guidance".into(), "must be finite numbers".into()));
        }
        let is_repeated = |(i, scale): (usize, &f64)| self.guidance[..i].contains(scale);
        if self.guidance.iter().enumerate().any(is_repeated) {
            return Err(("eval.guidance".into(), "names a scale twice".into()));
        }
        if self.steps.is_some_and(|steps| steps == 0 || steps >= 1000) {
            return Err(("eval.steps".into(), "must be between 1 and 999".into()));
        }
        if let Some((metric, model)) =
            self.metrics.iter().find_map(|metric| Some((metric, metric.missing_model(&self.models)?)))
        {
            let message = format!("`{}` needs a model: set eval.models.{model}", metric.name());
            return Err(("eval.metrics".into(), message));
        }
        if self.metrics.contains(&Metric::SceneScore) && self.scenes == 0 {
            return Err(("eval.metrics".into(), "`scene_score` needs prompts: set eval.scenes".into()));
        }
        Ok(())
    }
}
