//! `transformer/config.json`: the options of diffusers' SD3Transformer2DModel, and their checks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Error;
use crate::model_folder::config_file::{self, AcceptedKeys};

/// The keys of `transformer/config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SD3TransformerConfig {
    /// Side of the latents for which positions have a distance of one.
    pub sample_size: i64,
    /// Side of a patch of latents, which is one token.
    pub patch_size: i64,
    /// Channels of the noisy latents.
    pub in_channels: i64,
    /// Channels of the prediction.
    pub out_channels: i64,
    /// Transformer blocks.
    pub num_layers: i64,
    /// Width of an attention head.
    pub attention_head_dim: i64,
    /// Attention heads per block.
    pub num_attention_heads: i64,
    /// Width of the text embeddings.
    pub joint_attention_dim: i64,
    /// Width of the text inside the transformer, which is that of the image: heads x their width.
    pub caption_projection_dim: i64,
    /// Width of the pooled text.
    pub pooled_projection_dim: i64,
    /// Side of the largest image that has positions, in patches. Smaller images take those from the middle.
    pub pos_embed_max_size: i64,
    /// Blocks whose image tokens also attend to themselves alone (Stable Diffusion 3.5).
    pub dual_attention_layers: Vec<i64>,
    /// The norm of queries and keys (Stable Diffusion 3.5).
    pub qk_norm: Option<QkNorm>,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// The root mean square of each head.
    RmsNorm,
}

impl Default for SD3TransformerConfig {
    /// diffusers' defaults.
    fn default() -> Self {
        Self {
            sample_size: 128,
            patch_size: 2,
            in_channels: 16,
            out_channels: 16,
            num_layers: 18,
            attention_head_dim: 64,
            num_attention_heads: 18,
            joint_attention_dim: 4096,
            caption_projection_dim: 1152,
            pooled_projection_dim: 2048,
            pos_embed_max_size: 96,
            dual_attention_layers: Vec::new(),
            qk_norm: None,
        }
    }
}

const CLASS: &str = "SD3Transformer2DModel";

const ACCEPTED: AcceptedKeys = AcceptedKeys { class_names: &[CLASS], ignored: &[], fixed: &[] };

impl SD3TransformerConfig {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, inconsistent, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read: Self = config_file::read(path, &ACCEPTED)?;
        read.check(path)?;
        Ok(read)
    }

    /// Writes `config.json` as diffusers reads it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        config_file::write(path, json!({"_class_name": CLASS}), self)
    }

    /// Width of all tokens.
    pub fn width(&self) -> i64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Checks that the sizes fit each other. Errors name `path`.
    pub(crate) fn check(&self, path: &Path) -> Result<(), Error> {
        config_file::require_positive(
            path,
            &[
                ("sample_size", self.sample_size),
                ("patch_size", self.patch_size),
                ("in_channels", self.in_channels),
                ("out_channels", self.out_channels),
                ("num_layers", self.num_layers),
                ("attention_head_dim", self.attention_head_dim),
                ("num_attention_heads", self.num_attention_heads),
                ("joint_attention_dim", self.joint_attention_dim),
                ("pooled_projection_dim", self.pooled_projection_dim),
                ("pos_embed_max_size", self.pos_embed_max_size),
            ],
        )?;
        let refuse = |key: &str, value: i64, allowed: String| {
            Err(Error::Unsupported { path: path.into(), key: key.into(), value: value.to_string(), allowed })
        };
        let width = self.width();
        if width % 4 != 0 {
            return refuse(
                "attention_head_dim",
                self.attention_head_dim,
                "four must divide the width".into(),
            );
        }
        if self.caption_projection_dim != width {
            let allowed = format!("it must be num_attention_heads x attention_head_dim = {width}");
            return refuse("caption_projection_dim", self.caption_projection_dim, allowed);
        }
        if self.sample_size < self.patch_size {
            return refuse("sample_size", self.sample_size, "it must be at least patch_size".into());
        }
        match self.dual_attention_layers.iter().find(|layer| !(0..self.num_layers).contains(*layer)) {
            Some(layer) => refuse("dual_attention_layers", *layer, "there is no such layer".into()),
            None => Ok(()),
        }
    }
}
