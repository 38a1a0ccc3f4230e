//! The `config.json` of a DINOv2 model, and its checks.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::layers::Activation;
use crate::model_folder::config_file::{self, AcceptedKeys};

/// The keys of `config.json` that shape the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dinov2Config {
    /// Width of the hidden states.
    pub hidden_size: i64,
    /// Transformer layers.
    pub num_hidden_layers: i64,
    /// Attention heads per layer.
    pub num_attention_heads: i64,
    /// Width inside the MLP, as a multiple of `hidden_size`.
    pub mlp_ratio: i64,
    /// The MLP's activation.
    pub hidden_act: Activation,
    /// Whether the MLP is gated (ViT-g).
    pub use_swiglu_ffn: bool,
    /// Side in pixels of the images for which there are position embeddings.
    pub image_size: i64,
    /// Side of a patch in pixels.
    pub patch_size: i64,
    /// Epsilon of every LayerNorm.
    pub layer_norm_eps: f64,
    /// Whether the weights have the embedding of masked patches, which only training uses.
    pub use_mask_token: bool,
}

impl Default for Dinov2Config {
    /// transformers' defaults.
    fn default() -> Self {
        Self {
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            mlp_ratio: 4,
            hidden_act: Activation::Gelu,
            use_swiglu_ffn: false,
            image_size: 224,
            patch_size: 14,
            layer_norm_eps: 1e-6,
            use_mask_token: true,
        }
    }
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &[],
    // Settings of training, and of the use as a backbone.
    ignored: &[
        "apply_layernorm",
        "architectures",
        "drop_path_rate",
        "dtype",
        "initializer_range",
        "layerscale_value",
        "out_features",
        "out_indices",
        "reshape_hidden_states",
        "stage_names",
        "torch_dtype",
        "transformers_version",
    ],
    fixed: &[
        ("model_type", &["\"dinov2\""]),
        ("attention_probs_dropout_prob", &["0.0"]),
        ("hidden_dropout_prob", &["0.0"]),
        ("num_channels", &["3"]),
        ("qkv_bias", &["true"]),
    ],
};

impl Dinov2Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read: Self = config_file::read(path, &ACCEPTED)?;
        config_file::require_positive(
            path,
            &[
                ("hidden_size", read.hidden_size),
                ("num_hidden_layers", read.num_hidden_layers),
                ("num_attention_heads", read.num_attention_heads),
                ("mlp_ratio", read.mlp_ratio),
                ("image_size", read.image_size),
                ("patch_size", read.patch_size),
            ],
        )?;
        config_file::require_divisor(path, read.num_attention_heads, read.hidden_size)?;
        Ok(read)
    }
}
