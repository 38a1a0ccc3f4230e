//! `[train.preview]`: preview images drawn during training.

use serde::{Deserialize, Serialize};
use tidemill_models::sampler::SamplerMethod;

/// `[train.preview]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PreviewConfig {
    /// Steps between two grids of images. 0 draws none.
    pub every: u64,
    /// The prompts, one image each.
    pub prompts: Vec<String>,
    /// Sampler.
    pub method: SamplerMethod,
    /// Sampler steps.
    pub steps: usize,
    /// Classifier-free guidance scale.
    pub guidance: f64,
}

impl Default for PreviewConfig {
    fn default() -> Self {
        Self { every: 1000, prompts: Vec::new(), method: SamplerMethod::Ddim, steps: 25, guidance: 5.0 }
    }
}
