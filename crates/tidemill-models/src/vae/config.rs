//! `vae/config.json`, and its checks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tch::Tensor;

use crate::Error;
use crate::layers::ResnetConfig;
use crate::model_folder::config_file::{self, AcceptedKeys};

/// The epsilon of all norms. diffusers' VAE uses it whatever the configuration says.
pub const EPS: f64 = 1e-6;

/// The keys of `vae/config.json` that shape the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VaeConfig {
    /// Channels of the image.
    pub in_channels: i64,
    /// Channels of the reconstruction.
    pub out_channels: i64,
    /// Encoder levels, outermost first; all `DownEncoderBlock2D`.
    pub down_block_types: Vec<String>,
    /// Decoder levels, innermost first; all `UpDecoderBlock2D`.
    pub up_block_types: Vec<String>,
    /// Channels per level, outermost first.
    pub block_out_channels: Vec<i64>,
    /// Residual blocks per encoder level; the decoder has one more.
    pub layers_per_block: i64,
    /// Channels of the latents.
    pub latent_channels: i64,
    /// Groups of every GroupNorm.
    pub norm_num_groups: i64,
    /// Side of the images that it was trained on, in pixels.
    pub sample_size: i64,
    /// Latents are multiplied by this before the U-Net sees them, and divided by it before
    /// decoding.
    pub scaling_factor: f64,
    /// Is subtracted from latents before they are multiplied by the scaling factor (Stable Diffusion 3).
    #[serde(deserialize_with = "null_as_zero", skip_serializing_if = "is_zero")]
    pub shift_factor: f64,
    /// Whether the middle block has attention.
    pub mid_block_add_attention: bool,
    /// Whether a 1x1 convolution follows the encoder.
    pub use_quant_conv: bool,
    /// Whether a 1x1 convolution precedes the decoder.
    pub use_post_quant_conv: bool,
}

/// The map between a VAE's latents and those that the network takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentScale {
    /// The VAE's scaling factor.
    pub factor: f64,
    /// Its shift factor, 0 for most.
    pub shift: f64,
}

impl LatentScale {
    /// A VAE's latents as the network takes them.
    ///
    /// # Panics
    /// If libtorch fails.
    pub fn scale(self, latents: &Tensor) -> Tensor {
        match self.shift {
            0.0 => latents * self.factor,
            shift => (latents - shift) * self.factor,
        }
    }

    /// The network's latents as the VAE decodes them.
    ///
    /// # Panics
    /// If libtorch fails.
    pub fn unscale(self, latents: &Tensor) -> Tensor {
        match self.shift {
            0.0 => latents / self.factor,
            shift => latents / self.factor + shift,
        }
    }
}

impl Default for VaeConfig {
    /// diffusers' defaults.
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            down_block_types: vec!["DownEncoderBlock2D".into()],
            up_block_types: vec!["UpDecoderBlock2D".into()],
            block_out_channels: vec![64],
            layers_per_block: 1,
            latent_channels: 4,
            norm_num_groups: 32,
            sample_size: 32,
            scaling_factor: 0.18215,
            shift_factor: 0.0,
            mid_block_add_attention: true,
            use_quant_conv: true,
            use_post_quant_conv: true,
        }
    }
}

fn null_as_zero<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Configurations without a shift are written as before there was one.
fn is_zero(shift: &f64) -> bool {
    *shift == 0.0
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &["AutoencoderKL"],
    ignored: &["force_upcast"],
    fixed: &[("act_fn", &["\"silu\""]), ("latents_mean", &["null"]), ("latents_std", &["null"])],
};

impl VaeConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read: Self = config_file::read(path, &ACCEPTED)?;
        config_file::require_positive(
            path,
            &[
                ("in_channels", read.in_channels),
                ("out_channels", read.out_channels),
                ("layers_per_block", read.layers_per_block),
                ("latent_channels", read.latent_channels),
                ("norm_num_groups", read.norm_num_groups),
            ],
        )?;
        let unsupported = |key: &str, value: String, allowed: String| {
            Err(Error::Unsupported { path: path.into(), key: key.into(), value, allowed })
        };
        let levels = read.block_out_channels.len();
        if levels == 0 {
            return unsupported("block_out_channels", "[]".into(), "give the channels of each level".into());
        }
        for (key, types, known) in [
            ("down_block_types", &read.down_block_types, "DownEncoderBlock2D"),
            ("up_block_types", &read.up_block_types, "UpDecoderBlock2D"),
        ] {
            if types.len() != levels || types.iter().any(|t| t != known) {
                return unsupported(
                    key,
                    format!("{types:?}"),
                    format!("it must be {levels} times \"{known}\""),
                );
            }
        }
        if let Some(c) = read.block_out_channels.iter().find(|c| **c < 1 || *c % read.norm_num_groups != 0) {
            let allowed = format!("{} groups must divide it", read.norm_num_groups);
            return unsupported("block_out_channels", c.to_string(), allowed);
        }
        Ok(read)
    }

    /// Writes `config.json` as diffusers reads it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        config_file::write(path, json!({"_class_name": "AutoencoderKL"}), self)
    }

    /// Latents as the network takes them: (latents - shift factor) x scaling factor.
    pub fn latent_scale(&self) -> LatentScale {
        LatentScale { factor: self.scaling_factor, shift: self.shift_factor }
    }

    /// Pixels of an image per pixel of its latents, in each dimension.
    pub fn downscale_factor(&self) -> i64 {
        1 << (self.block_out_channels.len() - 1)
    }

    /// The settings of all residual blocks.
    pub(super) fn resnet(&self) -> ResnetConfig {
        ResnetConfig { groups: self.norm_num_groups, eps: EPS, time_embedding: None }
    }
}
