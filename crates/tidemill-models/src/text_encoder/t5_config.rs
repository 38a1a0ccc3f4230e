//! `text_encoder_3/config.json`: T5's configuration, and its checks.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::model_folder::config_file::{self, AcceptedKeys, LEGACY_TRANSFORMERS_KEYS};

/// The keys of a T5 `config.json` that shape the encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct T5Config {
    /// Number of token ids.
    pub vocab_size: i64,
    /// Width of the hidden states.
    pub d_model: i64,
    /// Width of an attention head.
    pub d_kv: i64,
    /// Width inside the MLP.
    pub d_ff: i64,
    /// Layers of the encoder.
    pub num_layers: i64,
    /// Attention heads per layer.
    pub num_heads: i64,
    /// Classes of distances between tokens, each with a bias of its own.
    pub relative_attention_num_buckets: i64,
    /// The distance from which on all are of one class.
    pub relative_attention_max_distance: i64,
    /// Epsilon of every norm.
    pub layer_norm_epsilon: f64,
    /// The form of the MLP.
    pub feed_forward_proj: FeedForwardProj,
}

/// Forms of T5's MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FeedForwardProj {
    /// One linear layer and a ReLU: version 1.0.
    #[serde(rename = "relu")]
    Relu,
    /// GELU times a second linear layer: version 1.1, which Stable Diffusion 3 uses.
    #[serde(rename = "gated-gelu")]
    GatedGelu,
}

impl Default for T5Config {
    /// transformers' defaults.
    fn default() -> Self {
        Self {
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            layer_norm_epsilon: 1e-6,
            feed_forward_proj: FeedForwardProj::Relu,
        }
    }
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &[],
    // Settings of the decoder and of training, and what follows from `feed_forward_proj`.
    ignored: &[
        "classifier_dropout",
        "dense_act_fn",
        "dropout_rate",
        "is_gated_act",
        "n_positions",
        "num_decoder_layers",
        "output_past",
        "scale_decoder_outputs",
        "use_cache",
    ],
    fixed: &[("model_type", &["\"t5\""])],
};

impl T5Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut object = config_file::read_object(path)?;
        object.retain(|key, _| !LEGACY_TRANSFORMERS_KEYS.contains(&key.as_str()));
        let read: Self = config_file::parse(path, object, &ACCEPTED)?;
        config_file::require_positive(
            path,
            &[
                ("vocab_size", read.vocab_size),
                ("d_model", read.d_model),
                ("d_kv", read.d_kv),
                ("d_ff", read.d_ff),
                ("num_layers", read.num_layers),
                ("num_heads", read.num_heads),
                ("relative_attention_max_distance", read.relative_attention_max_distance),
                // Half of the classes are for each direction, and half of those for exact distances.
                ("relative_attention_num_buckets", read.relative_attention_num_buckets / 4),
            ],
        )?;
        Ok(read)
    }

    /// Whether the folder of a text encoder has T5.
    ///
    /// # Errors
    /// If its `config.json` cannot be read.
    pub fn is_t5(folder: &Path) -> Result<bool, Error> {
        let object = config_file::read_object(&folder.join("config.json"))?;
        Ok(object.get("model_type").is_some_and(|model| model == "t5"))
    }
}
