//! `[train.preview]`: pictures drawn during training.

use serde::{Deserialize, Serialize};
use tidemill_models::sampler::SamplerMethod;

use super::{TrainConfig, refuse};
use crate::Error;

/// `[train.preview]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PreviewConfig {
    /// Steps between two grids of pictures; 0 draws none.
    pub every: u64,
    /// The prompts, one picture each.
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

impl TrainConfig {
    /// Refuses pictures of nothing but NaN. Whether the sampler can draw in so many steps is asked when its schedule is there.
    pub(super) fn validate_preview(&self) -> Result<(), Error> {
        match &self.preview {
            Some(preview) if !preview.guidance.is_finite() => {
                refuse("train.preview.guidance", format!("{} must be a number", preview.guidance))
            }
            _ => Ok(()),
        }
    }
}
