//! `[encode]`: how the frozen models are run over the prepared rows.

use serde::{Deserialize, Serialize};

/// `[encode]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeConfig {
    /// Images and captions in one forward pass.
    pub batch_size: usize,
    /// Number format the models compute in.
    pub dtype: Dtype,
    /// What is stored of the VAE's distribution.
    pub latents: Latents,
    /// What is stored of the captions.
    pub embeddings: Embeddings,
}

/// Number formats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
    /// 16-bit floats.
    F16,
}

/// What is stored of the VAE's distribution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Latents {
    /// Mean and log-variance, so that each epoch draws a fresh sample.
    #[default]
    Moments,
}

/// What is stored of the captions. Nearly all bytes of a dataset are text embeddings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Embeddings {
    /// Their embeddings in 16-bit floats.
    #[default]
    F16,
    /// Their embeddings in 8-bit floats with a scale for each caption: half the bytes. `inspect` says how large the
    /// rounding errors are.
    F8,
    /// Their token ids only; the trainer encodes them.
    None,
}

impl Default for EncodeConfig {
    fn default() -> Self {
        Self {
            batch_size: 64,
            dtype: Dtype::default(),
            latents: Latents::default(),
            embeddings: Embeddings::default(),
        }
    }
}

impl EncodeConfig {
    /// Checks the section on its own; an error is a key and what is wrong with its value.
    pub(crate) fn validate(&self) -> Result<(), (&'static str, String)> {
        match self.batch_size {
            1..=4096 => Ok(()),
            n => Err(("encode.batch_size", format!("{n} is not between 1 and 4096"))),
        }
    }
}
