//! `[encode]`: how the frozen models are run over the prepared rows.

use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::error::{Error, Result};

/// `[encode]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeConfig {
    /// Images and captions in one forward pass. What remains of an image size in a unit is split
    /// into powers of two.
    pub batch_size: usize,
    /// Number format in which the models compute.
    pub dtype: ComputeDtype,
    /// What is stored of the VAE's distribution.
    pub latents: StoredLatents,
    /// What is stored of the captions.
    pub embeddings: StoredText,
    /// Tokens of a caption for T5; without T5, tokens of zeros that Stable Diffusion 3's transformer gets.
    pub max_sequence_length: u32,
}

/// Number formats in which models compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDtype {
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
pub enum StoredLatents {
    /// Mean and log-variance, so that each epoch draws a fresh sample.
    #[default]
    Moments,
}

/// What is stored of the captions. Text embeddings are nearly all bytes of a dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredText {
    /// Text embeddings in 16-bit floats.
    #[default]
    F16,
    /// Text embeddings in 8-bit floats with a scale for each caption: half the bytes.
    /// `tidemill inspect` shows how large the rounding errors are.
    F8,
    /// Token ids only (`"none"` in the run file); the trainer encodes them.
    #[serde(rename = "none")]
    TokenIds,
}

impl Default for EncodeConfig {
    fn default() -> Self {
        Self {
            batch_size: 64,
            dtype: ComputeDtype::default(),
            latents: StoredLatents::default(),
            embeddings: StoredText::default(),
            // As diffusers' StableDiffusion3Pipeline.
            max_sequence_length: 256,
        }
    }
}

impl EncodeConfig {
    /// Tokens of a caption for T5.
    ///
    /// # Errors
    /// If there are none.
    pub(crate) fn t5_tokens(&self) -> Result<usize> {
        match self.max_sequence_length {
            0 => Err(Error::Encode(
                "encode.max_sequence_length is 0, but the models have T5: give its tokens".into(),
            )),
            tokens => Ok(tokens as usize),
        }
    }

    /// Checks the section on its own. An error is a key and what is wrong with its value.
    pub(crate) fn validate(&self) -> std::result::Result<(), (&'static str, String)> {
        match (self.batch_size, self.max_sequence_length) {
            (1..=4096, 0..=512) => Ok(()),
            (1..=4096, n) => Err(("encode.max_sequence_length", format!("{n} is not between 0 and 512"))),
            (n, _) => Err(("encode.batch_size", format!("{n} is not between 1 and 4096"))),
        }
    }
}

impl ComputeDtype {
    /// The same format in libtorch.
    pub fn to_kind(self) -> Kind {
        match self {
            Self::F32 => Kind::Float,
            Self::Bf16 => Kind::BFloat16,
            Self::F16 => Kind::Half,
        }
    }
}
