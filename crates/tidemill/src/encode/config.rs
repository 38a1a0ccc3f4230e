//! `[encode]`: how the frozen models are run over the prepared rows.

use serde::{Deserialize, Serialize};

/// `[encode]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeConfig {
    /// Images and captions in one forward pass.
    pub batch_size: usize,
    /// Number format the models compute in. What is stored is always f16.
    pub dtype: Dtype,
    /// What is stored of the VAE's distribution.
    pub latents: Latents,
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

impl Default for EncodeConfig {
    fn default() -> Self {
        Self { batch_size: 64, dtype: Dtype::default(), latents: Latents::default() }
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
