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
    /// Width of the projected pooled output; `None` for an encoder without a projection. (A file has the
    /// projection's width in either case; its class says whether there is one.)
    #[serde(skip)]
    pub projection_dim: Option<i64>,
    /// The token at whose first position the pooled output is read; `None` for the position of the largest id,
    /// as models say that were published before transformers 4.31.
    #[serde(skip)]
    pub eos_token_id: Option<i64>,
}

/// The id of the token that ends a caption in CLIP's vocabulary.
const END_OF_TEXT: i64 = 49407;

/// The end of text in models that were published before transformers 4.31: of no meaning.
const LEGACY_END_OF_TEXT: i64 = 2;

/// transformers' default width of the projection.
pub(crate) const DEFAULT_PROJECTION_DIM: i64 = 512;

/// The class of encoders with a projection.
const WITH_PROJECTION: &str = "CLIPTextModelWithProjection";

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
            projection_dim: None,
            eos_token_id: Some(END_OF_TEXT),
        }
    }
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &[],
    // None of these changes the hidden states.
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
        let eos_token_id = object.get("eos_token_id").and_then(Value::as_i64).unwrap_or(END_OF_TEXT);
        let projection_dim = has_projection(&object)
            .then(|| object.get("projection_dim").and_then(Value::as_i64).unwrap_or(DEFAULT_PROJECTION_DIM));
        let mut read: Self = config_file::parse(path, object, &ACCEPTED)?;
        read.projection_dim = projection_dim;
        read.eos_token_id = Some(eos_token_id).filter(|id| *id != LEGACY_END_OF_TEXT);
        config_file::require_positive(
            path,
            &[
                ("vocab_size", read.vocab_size),
                ("hidden_size", read.hidden_size),
                ("intermediate_size", read.intermediate_size),
                ("num_hidden_layers", read.num_hidden_layers),
                ("num_attention_heads", read.num_attention_heads),
                ("max_position_embeddings", read.max_position_embeddings),
                ("projection_dim", projection_dim.unwrap_or(1)),
            ],
        )?;
        config_file::require_divisor(path, read.num_attention_heads, read.hidden_size)?;
        Ok(read)
    }

    /// The name of transformers' class.
    pub fn class_name(&self) -> &'static str {
        if self.projection_dim.is_some() { WITH_PROJECTION } else { "CLIPTextModel" }
    }

    /// Writes `config.json` as transformers reads it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut about = json!({
            "architectures": [self.class_name()],
            "model_type": "clip_text_model",
            "eos_token_id": self.eos_token_id.unwrap_or(LEGACY_END_OF_TEXT),
        });
        if let Some(width) = self.projection_dim {
            about["projection_dim"] = json!(width);
        }
        config_file::write(path, about, self)
    }
}

fn has_projection(object: &Map<String, Value>) -> bool {
    object.get("architectures").is_some_and(|classes| *classes == json!([WITH_PROJECTION]))
}
