//! `text_encoder/config.json`, and its checks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::layers::Activation;
use crate::model_folder::config_file::{self, AcceptedKeys, LEGACY_TRANSFORMERS_KEYS};

/// The keys of `text_encoder/config.json` that shape the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClipTextConfig {
    /// Number of token ids.
    pub vocab_size: i64,
    /// Width of the hidden states.
    pub hidden_size: i64,
    /// Width inside the MLP.
    pub intermediate_size: i64,
    /// Transformer layers.
    pub num_hidden_layers: i64,
    /// Attention heads per layer.
    pub num_attention_heads: i64,
    /// The longest caption, in tokens.
    pub max_position_embeddings: i64,
    /// The MLP's activation.
    pub hidden_act: Activation,
    /// Epsilon of every LayerNorm.
    pub layer_norm_eps: f64,
}

impl Default for ClipTextConfig {
    /// transformers' defaults.
    fn default() -> Self {
        Self {
            vocab_size: 49408,
            hidden_size: 512,
            intermediate_size: 2048,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            max_position_embeddings: 77,
            hidden_act: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
        }
    }
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &[],
    // None of these changes the hidden states. Special ids only select the pooled output, which
    // Stable Diffusion does not use.
    ignored: LEGACY_TRANSFORMERS_KEYS,
    fixed: &[
        ("model_type", &["\"clip_text_model\""]),
        ("attention_dropout", &["0.0"]),
        ("dropout", &["0.0"]),
    ],
};

impl ClipTextConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::parse(path, config_file::read_object(path)?)
    }

    /// [`Self::read`] for an object that was read from `path` before.
    pub(crate) fn parse(path: &Path, object: Map<String, Value>) -> Result<Self, Error> {
        let read: Self = config_file::parse(path, object, &ACCEPTED)?;
        config_file::require_positive(
            path,
            &[
                ("vocab_size", read.vocab_size),
                ("hidden_size", read.hidden_size),
                ("intermediate_size", read.intermediate_size),
                ("num_hidden_layers", read.num_hidden_layers),
                ("num_attention_heads", read.num_attention_heads),
                ("max_position_embeddings", read.max_position_embeddings),
            ],
        )?;
        config_file::require_divisor(path, read.num_attention_heads, read.hidden_size)?;
        Ok(read)
    }

    /// Writes `config.json` as transformers reads it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let about = json!({"architectures": ["CLIPTextModel"], "model_type": "clip_text_model"});
        config_file::write(path, about, self)
    }
}
