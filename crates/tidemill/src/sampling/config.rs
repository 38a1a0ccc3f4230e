//! `[sample]` of the run file: which images are drawn, and how.

use serde::{Deserialize, Serialize};
use tch::Kind;
use tidemill_models::sampler::SamplerMethod;

use crate::encode::ComputeDtype;

/// `[sample]`: the images drawn after training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// The prompts, one image for each.
    pub prompts: Vec<String>,
    /// The number of additional prompts, from the held-out combinations of the synthetic scenes.
    /// Their images are scored by rule.
    pub scenes: usize,
    /// Side of the images in pixels. Default: that of the last phase.
    pub resolution: Option<u32>,
    /// The sampler.
    pub method: SamplerMethod,
    /// Sampler steps.
    pub steps: usize,
    /// Classifier-free guidance scale. 1 switches guidance off.
    pub guidance: f64,
    /// Images in one forward pass.
    pub batch_size: usize,
    /// Number format of the U-Net.
    pub dtype: ComputeDtype,
    /// Whether to use the averaged (EMA) weights, if the run has any.
    pub ema: bool,
    /// The checkpoint whose weights are used for drawing and export. Default: the newest.
    pub step: Option<u64>,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            scenes: 0,
            resolution: None,
            method: SamplerMethod::Ddim,
            steps: 25,
            guidance: 5.0,
            batch_size: 16,
            dtype: ComputeDtype::F32,
            ema: true,
            step: None,
        }
    }
}

impl SampleConfig {
    /// Checks the section on its own.
    ///
    /// # Errors
    /// A key, and what is wrong with its value.
    pub(crate) fn validate(&self) -> std::result::Result<(), (&'static str, String)> {
        if self.steps == 0 || self.steps >= 1000 {
            return Err(("sample.steps", format!("{} is not between 1 and 999", self.steps)));
        }
        if self.batch_size == 0 {
            return Err(("sample.batch_size", "must be at least 1".into()));
        }
        if !self.guidance.is_finite() {
            return Err(("sample.guidance", "must be a finite number".into()));
        }
        Ok(())
    }

    /// How images of `resolution` pixels are drawn.
    pub(crate) fn to_drawing(&self, resolution: u32, seed: u64) -> Drawing {
        Drawing {
            method: self.method,
            steps: self.steps,
            guidance: self.guidance,
            batch_size: self.batch_size,
            kind: self.dtype.to_kind(),
            resolution,
            seed,
        }
    }

    /// Whether the section asks for any image.
    pub fn has_prompts(&self) -> bool {
        !self.prompts.is_empty() || self.scenes > 0
    }
}

/// How images are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawing {
    /// The sampler.
    pub method: SamplerMethod,
    /// Sampler steps.
    pub steps: usize,
    /// Classifier-free guidance scale.
    pub guidance: f64,
    /// Images in one forward pass.
    pub batch_size: usize,
    /// Number format of the U-Net.
    pub kind: Kind,
    /// Side of the images in pixels.
    pub resolution: u32,
    /// Seed of the initial noise.
    pub seed: u64,
}
