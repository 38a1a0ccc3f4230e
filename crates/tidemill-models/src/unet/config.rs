//! `unet/config.json`: the options of diffusers' UNet2DConditionModel that Stable Diffusion 1.x and
//! 2.x use, and their checks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Error;
use crate::model_folder::config_file::{self, AcceptedKeys, PerLevel};

/// The keys of `unet/config.json` that shape the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UNetConfig {
    /// Side of the latents that it was made for; samplers use it as the default size.
    pub sample_size: Option<i64>,
    /// Channels of the noisy latents.
    pub in_channels: i64,
    /// Channels of the prediction.
    pub out_channels: i64,
    /// Whether the cosines come before the sines in the time embedding.
    pub flip_sin_to_cos: bool,
    /// Shift of the frequencies of the time embedding.
    pub freq_shift: i64,
    /// Levels of the downward path: `CrossAttnDownBlock2D` or `DownBlock2D`, outermost first.
    pub down_block_types: Vec<String>,
    /// Levels of the upward path: `UpBlock2D` or `CrossAttnUpBlock2D`, innermost first.
    pub up_block_types: Vec<String>,
    /// Channels per level, outermost first.
    pub block_out_channels: Vec<i64>,
    /// Residual blocks per level of the downward path; the upward path has one more.
    pub layers_per_block: i64,
    /// Padding of the strided convolutions.
    pub downsample_padding: i64,
    /// Groups of every GroupNorm.
    pub norm_num_groups: i64,
    /// Epsilon of the residual blocks' GroupNorms.
    pub norm_eps: f64,
    /// Width of the text embedding.
    pub cross_attention_dim: i64,
    /// Transformer blocks per attention, once or per level.
    pub transformer_layers_per_block: PerLevel,
    /// The number of heads, once or per level. (The name is a mistake that diffusers keeps.)
    pub attention_head_dim: PerLevel,
    /// Linear layers around the transformer blocks (SD 2.x) instead of 1x1 convolutions (SD 1.x).
    pub use_linear_projection: bool,
    /// Attention in f32 (SD 2.1). It has no effect here, and none in diffusers since it uses
    /// `scaled_dot_product_attention`. diffusers' converter of SD 1.x writes null for false.
    #[serde(deserialize_with = "null_as_false")]
    pub upcast_attention: bool,
    /// What is added to the time embedding; none in SD 1.x and 2.x.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addition_embed_type: Option<AdditionEmbedType>,
    /// Width of the sinusoidal embedding of each of the six sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addition_time_embed_dim: Option<i64>,
    /// Width of the pooled text and of the sizes' embeddings together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_class_embeddings_input_dim: Option<i64>,
}

/// What a U-Net adds to its time embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdditionEmbedType {
    /// Pooled text and the sizes of image and crop: SDXL's micro-conditioning (Podell et al., 2023).
    TextTime,
}

fn null_as_false<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Default for UNetConfig {
    /// diffusers' defaults: those of SD 1.x except for the cross-attention width.
    fn default() -> Self {
        let names = |list: [&str; 4]| list.map(String::from).to_vec();
        let (down, up) = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D");
        Self {
            sample_size: None,
            in_channels: 4,
            out_channels: 4,
            flip_sin_to_cos: true,
            freq_shift: 0,
            down_block_types: names([down, down, down, "DownBlock2D"]),
            up_block_types: names(["UpBlock2D", up, up, up]),
            block_out_channels: vec![320, 640, 1280, 1280],
            layers_per_block: 2,
            downsample_padding: 1,
            norm_num_groups: 32,
            norm_eps: 1e-5,
            cross_attention_dim: 1280,
            transformer_layers_per_block: PerLevel::One(1),
            attention_head_dim: PerLevel::One(8),
            use_linear_projection: false,
            upcast_attention: false,
            addition_embed_type: None,
            addition_time_embed_dim: None,
            projection_class_embeddings_input_dim: None,
        }
    }
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &["UNet2DConditionModel"],
    // Widths of embeddings that the fixed keys below switch off.
    ignored: &["addition_embed_type_num_heads"],
    fixed: &[
        ("act_fn", &["\"silu\"", "\"swish\""]),
        ("attention_type", &["\"default\""]),
        ("center_input_sample", &["false"]),
        ("class_embed_type", &["null"]),
        ("class_embeddings_concat", &["false"]),
        ("conv_in_kernel", &["3"]),
        ("conv_out_kernel", &["3"]),
        ("cross_attention_norm", &["null"]),
        ("dropout", &["0.0"]),
        ("dual_cross_attention", &["false"]),
        ("encoder_hid_dim", &["null"]),
        ("encoder_hid_dim_type", &["null"]),
        ("mid_block_only_cross_attention", &["null", "false"]),
        ("mid_block_scale_factor", &["1"]),
        ("mid_block_type", &["\"UNetMidBlock2DCrossAttn\""]),
        ("num_attention_heads", &["null"]),
        ("num_class_embeds", &["null"]),
        ("only_cross_attention", &["false"]),
        ("resnet_out_scale_factor", &["1.0"]),
        ("resnet_skip_time_act", &["false"]),
        ("resnet_time_scale_shift", &["\"default\""]),
        ("reverse_transformer_layers_per_block", &["null"]),
        ("time_cond_proj_dim", &["null"]),
        ("time_embedding_act_fn", &["null"]),
        ("time_embedding_dim", &["null"]),
        ("time_embedding_type", &["\"positional\""]),
        ("timestep_post_act", &["null"]),
    ],
};

/// Numbers of [`crate::Conditions::time_ids`] per image.
pub(crate) const TIME_IDS: i64 = 6;

/// Widths of the inputs that are added to the time embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddedWidths {
    /// Of the pooled text.
    pub pooled: i64,
    /// Of the embedding of one number of the time ids.
    pub size: i64,
}

/// One level of the U-Net, resolved from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub channels: i64,
    pub heads: i64,
    pub transformer_layers: i64,
    pub has_attention_down: bool,
    pub has_attention_up: bool,
}

impl UNetConfig {
    /// The configuration of Stable Diffusion 2: `unet/config.json` of `stable-diffusion-2-base`.
    pub fn stable_diffusion_2() -> Self {
        Self {
            sample_size: Some(64),
            cross_attention_dim: 1024,
            attention_head_dim: PerLevel::Each(vec![5, 10, 20, 20]),
            use_linear_projection: true,
            ..Self::default()
        }
    }

    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, inconsistent, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read: Self = config_file::read(path, &ACCEPTED)?;
        read.levels(path)?;
        Ok(read)
    }

    /// Writes `config.json` as diffusers reads it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        config_file::write(path, json!({"_class_name": "UNet2DConditionModel"}), self)
    }

    /// Whether it takes pooled text and [time ids](crate::Conditions::time_ids), as SDXL's does.
    pub fn takes_time_ids(&self) -> bool {
        self.addition_embed_type == Some(AdditionEmbedType::TextTime)
    }

    /// The widths of what is added to the time embedding; `None` for nothing. Errors name `path`.
    pub(crate) fn added_widths(&self, path: &Path) -> Result<Option<AddedWidths>, Error> {
        if self.addition_embed_type.is_none() {
            return Ok(None);
        }
        let width = |value: Option<i64>| value.unwrap_or(0);
        let (size, input) =
            (width(self.addition_time_embed_dim), width(self.projection_class_embeddings_input_dim));
        config_file::require_positive(path, &[("addition_time_embed_dim", size)])?;
        let pooled = input - TIME_IDS * size;
        if pooled < 1 {
            return Err(Error::Unsupported {
                path: path.into(),
                key: "projection_class_embeddings_input_dim".into(),
                value: input.to_string(),
                allowed: format!("it must exceed {TIME_IDS} x addition_time_embed_dim = {}", TIME_IDS * size),
            });
        }
        Ok(Some(AddedWidths { pooled, size }))
    }

    /// Checks the configuration and resolves its levels, outermost first. Errors name `path`.
    pub(crate) fn levels(&self, path: &Path) -> Result<Vec<Level>, Error> {
        config_file::require_positive(
            path,
            &[
                ("in_channels", self.in_channels),
                ("out_channels", self.out_channels),
                ("layers_per_block", self.layers_per_block),
                ("norm_num_groups", self.norm_num_groups),
                ("cross_attention_dim", self.cross_attention_dim),
            ],
        )?;
        self.added_widths(path)?;
        let n = self.block_out_channels.len();
        let unsupported = |key: &str, value: String, allowed: &str| Error::Unsupported {
            path: path.into(),
            key: key.into(),
            value,
            allowed: allowed.into(),
        };
        let per_level = |key: &str, value: &PerLevel| {
            value.expand(n).ok_or_else(|| {
                unsupported(
                    key,
                    format!("{value:?}"),
                    &format!("give one value, or {n} like block_out_channels"),
                )
            })
        };
        let attention_flags = |key: &str, types: &[String], plain: &str, cross: &str| {
            let flags: Option<Vec<bool>> = types
                .iter()
                .map(|t| if t == cross { Some(true) } else { (t == plain).then_some(false) })
                .collect();
            flags.filter(|f| f.len() == n && n > 0).ok_or_else(|| {
                unsupported(key, format!("{types:?}"), &format!("give {n} of \"{plain}\" and \"{cross}\""))
            })
        };
        let heads = per_level("attention_head_dim", &self.attention_head_dim)?;
        let layers = per_level("transformer_layers_per_block", &self.transformer_layers_per_block)?;
        let down = attention_flags(
            "down_block_types",
            &self.down_block_types,
            "DownBlock2D",
            "CrossAttnDownBlock2D",
        )?;
        let up = attention_flags("up_block_types", &self.up_block_types, "UpBlock2D", "CrossAttnUpBlock2D")?;
        let levels = (0..n).map(|i| Level {
            channels: self.block_out_channels[i],
            heads: heads[i],
            transformer_layers: layers[i],
            has_attention_down: down[i],
            has_attention_up: up[n - 1 - i],
        });
        let levels: Vec<Level> = levels.collect();
        for (i, level) in levels.iter().enumerate() {
            let channels = level.channels.to_string();
            if level.channels < 1 || level.channels % self.norm_num_groups != 0 {
                let allowed = format!("norm_num_groups = {} must divide it", self.norm_num_groups);
                return Err(unsupported("block_out_channels", channels, &allowed));
            }
            // The middle block, on the innermost level, always has attention.
            let has_attention = level.has_attention_down || level.has_attention_up || i + 1 == n;
            if has_attention && (level.heads < 1 || level.channels % level.heads != 0) {
                let allowed = format!("attention_head_dim = {} heads must divide it", level.heads);
                return Err(unsupported("block_out_channels", channels, &allowed));
            }
        }
        Ok(levels)
    }
}
