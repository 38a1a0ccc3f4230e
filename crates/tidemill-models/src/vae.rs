//! The VAE of Stable Diffusion (diffusers' AutoencoderKL): images to latent moments and back.

use crate::attention::{Attention, to_image, to_sequence};
use crate::config::{self, Accepted};
use crate::layers::{Conv2d, GroupNorm, or_panic};
use crate::params::{ParamInit, Params, Scope};
use crate::resnet::{Downsample2D, ResnetBlock2D, ResnetShape, Upsample2D};
use crate::{Error, weights};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use tidemill_torch::to_preferred_memory_format;

/// diffusers' VAE attention and residual blocks use this epsilon, whatever the configuration.
const EPS: f64 = 1e-6;

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
    /// Side of the images it was trained on, in pixels.
    pub sample_size: i64,
    /// Latents are multiplied by this before the U-Net sees them, and divided by it before decoding.
    pub scaling_factor: f64,
    /// Whether the middle block has attention.
    pub mid_block_add_attention: bool,
    /// Whether a 1x1 convolution makes the moments.
    pub use_quant_conv: bool,
    /// Whether a 1x1 convolution opens the decoder.
    pub use_post_quant_conv: bool,
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
            mid_block_add_attention: true,
            use_quant_conv: true,
            use_post_quant_conv: true,
        }
    }
}

const ACCEPTED: Accepted = Accepted {
    class_names: &["AutoencoderKL"],
    ignored: &["force_upcast"],
    fixed: &[
        ("act_fn", &["\"silu\""]),
        ("latents_mean", &["null"]),
        ("latents_std", &["null"]),
        ("shift_factor", &["null", "0.0"]),
    ],
};

impl VaeConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read: Self = config::read(path, &ACCEPTED)?;
        config::require_positive(
            path,
            &[
                ("in_channels", read.in_channels),
                ("out_channels", read.out_channels),
                ("layers_per_block", read.layers_per_block),
                ("latent_channels", read.latent_channels),
                ("norm_num_groups", read.norm_num_groups),
            ],
        )?;
        let wrong = |key: &str, value: String, allowed: String| {
            Err(Error::Unsupported { path: path.into(), key: key.into(), value, allowed })
        };
        let levels = read.block_out_channels.len();
        if levels == 0 {
            return wrong("block_out_channels", "[]".into(), "give the channels of each level".into());
        }
        for (key, types, known) in [
            ("down_block_types", &read.down_block_types, "DownEncoderBlock2D"),
            ("up_block_types", &read.up_block_types, "UpDecoderBlock2D"),
        ] {
            if types.len() != levels || types.iter().any(|t| t != known) {
                return wrong(key, format!("{types:?}"), format!("it must be {levels} times \"{known}\""));
            }
        }
        if let Some(c) = read.block_out_channels.iter().find(|c| **c < 1 || *c % read.norm_num_groups != 0) {
            let allowed = format!("{} groups must divide it", read.norm_num_groups);
            return wrong("block_out_channels", c.to_string(), allowed);
        }
        Ok(read)
    }

    /// Writes `config.json` as diffusers reads it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        config::write(path, json!({"_class_name": "AutoencoderKL"}), self)
    }

    /// How many pixels one latent cell is wide.
    pub fn downscale_factor(&self) -> i64 {
        1 << (self.block_out_channels.len() - 1)
    }

    fn resnet(&self) -> ResnetShape {
        ResnetShape { groups: self.norm_num_groups, eps: EPS, time_embedding: None }
    }
}

/// The VAE.
#[derive(Debug)]
pub struct AutoencoderKl {
    config: VaeConfig,
    params: Params,
    encoder: Encoder,
    decoder: Decoder,
    quant_conv: Option<Conv2d>,
    post_quant_conv: Option<Conv2d>,
}

impl AutoencoderKl {
    /// A VAE on `device` in f32.
    pub fn new(config: VaeConfig, device: Device, start: ParamInit) -> Self {
        let params = Params::new(device, start);
        let p = params.root();
        let latents = config.latent_channels;
        Self {
            encoder: Encoder::new(p.sub("encoder"), &config),
            decoder: Decoder::new(p.sub("decoder"), &config),
            quant_conv: config
                .use_quant_conv
                .then(|| Conv2d::pointwise(p.sub("quant_conv"), 2 * latents, 2 * latents)),
            post_quant_conv: config
                .use_post_quant_conv
                .then(|| Conv2d::pointwise(p.sub("post_quant_conv"), latents, latents)),
            config,
            params,
        }
    }

    /// Opens a `vae/` folder; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self, Error> {
        let config = VaeConfig::read(&dir.join("config.json"))?;
        let model = tidemill_torch::guard(|| Self::new(config, device, ParamInit::Empty))?;
        weights::load_weights(&model.params, dir)?;
        model.params.set_kind(kind);
        Ok(model)
    }

    /// Writes a `vae/` folder that diffusers' `AutoencoderKL.from_pretrained` opens.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.config.write(&dir.join("config.json"))?;
        weights::save_weights(&self.params.named_parameters(), &dir.join(weights::DIFFUSERS_FILE))
    }

    /// Images [N, 3, H, W] in [-1, 1] to moments [N, 2 C, H/d, W/d]: the mean, then the log-variance
    /// of the latents, *unscaled*.
    pub fn encode(&self, images: &Tensor) -> Tensor {
        let h = self.encoder.forward(&or_panic(to_preferred_memory_format(images)));
        self.quant_conv.as_ref().map_or_else(|| h.shallow_clone(), |conv| conv.forward(&h))
    }

    /// Unscaled latents [N, C, h, w] to images [N, 3, h d, w d], nominally in [-1, 1].
    pub fn decode(&self, latents: &Tensor) -> Tensor {
        let latents = or_panic(to_preferred_memory_format(latents));
        match &self.post_quant_conv {
            Some(conv) => self.decoder.forward(&conv.forward(&latents)),
            None => self.decoder.forward(&latents),
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}

/// Residual block, attention over all pixels, residual block.
#[derive(Debug)]
struct MidBlock {
    resnets: [ResnetBlock2D; 2],
    attention: Option<(GroupNorm, Attention)>,
}

impl MidBlock {
    fn new(p: Scope, channels: i64, config: &VaeConfig) -> Self {
        let resnet =
            |i: usize| ResnetBlock2D::new(p.sub("resnets").sub(i), channels, channels, config.resnet());
        let attention = config.mid_block_add_attention.then(|| {
            let p = p.sub("attentions").sub(0);
            let norm = GroupNorm::new(p.sub("group_norm"), config.norm_num_groups, channels, EPS);
            (norm, Attention::single_head(p, channels))
        });
        Self { resnets: [resnet(0), resnet(1)], attention }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let mut h = self.resnets[0].forward(x, None);
        if let Some((norm, attention)) = &self.attention {
            let sequence = to_sequence(&norm.forward(&h));
            h = &h + to_image(&attention.forward(&sequence, None), &h);
        }
        self.resnets[1].forward(&h, None)
    }
}

#[derive(Debug)]
struct Encoder {
    conv_in: Conv2d,
    levels: Vec<(Vec<ResnetBlock2D>, Option<Downsample2D>)>,
    mid: MidBlock,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Encoder {
    fn new(p: Scope, config: &VaeConfig) -> Self {
        let channels = &config.block_out_channels;
        let (first, last) = (channels[0], channels[channels.len() - 1]);
        let level = |i: usize| {
            let p = p.sub("down_blocks").sub(i);
            let inputs = if i == 0 { first } else { channels[i - 1] };
            let resnets = (0..config.layers_per_block).map(|j| {
                let inputs = if j == 0 { inputs } else { channels[i] };
                ResnetBlock2D::new(p.sub("resnets").sub(j), inputs, channels[i], config.resnet())
            });
            let down = (i + 1 < channels.len())
                .then(|| Downsample2D::new(p.sub("downsamplers").sub(0), channels[i], 0));
            (resnets.collect(), down)
        };
        Self {
            conv_in: Conv2d::same(p.sub("conv_in"), config.in_channels, first),
            levels: (0..channels.len()).map(level).collect(),
            mid: MidBlock::new(p.sub("mid_block"), last, config),
            norm_out: GroupNorm::new(p.sub("conv_norm_out"), config.norm_num_groups, last, EPS),
            conv_out: Conv2d::same(p.sub("conv_out"), last, 2 * config.latent_channels),
        }
    }

    fn forward(&self, images: &Tensor) -> Tensor {
        let mut h = self.conv_in.forward(images);
        for (resnets, down) in &self.levels {
            for resnet in resnets {
                h = resnet.forward(&h, None);
            }
            if let Some(down) = down {
                h = down.forward(&h);
            }
        }
        self.conv_out.forward(&self.norm_out.forward_silu(&self.mid.forward(&h)))
    }
}

#[derive(Debug)]
struct Decoder {
    conv_in: Conv2d,
    mid: MidBlock,
    levels: Vec<(Vec<ResnetBlock2D>, Option<Upsample2D>)>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Decoder {
    fn new(p: Scope, config: &VaeConfig) -> Self {
        let channels: Vec<i64> = config.block_out_channels.iter().rev().copied().collect();
        let (first, last) = (channels[0], channels[channels.len() - 1]);
        let level = |i: usize| {
            let p = p.sub("up_blocks").sub(i);
            let inputs = if i == 0 { first } else { channels[i - 1] };
            let resnets = (0..=config.layers_per_block).map(|j| {
                let inputs = if j == 0 { inputs } else { channels[i] };
                ResnetBlock2D::new(p.sub("resnets").sub(j), inputs, channels[i], config.resnet())
            });
            let up =
                (i + 1 < channels.len()).then(|| Upsample2D::new(p.sub("upsamplers").sub(0), channels[i]));
            (resnets.collect(), up)
        };
        Self {
            conv_in: Conv2d::same(p.sub("conv_in"), config.latent_channels, first),
            mid: MidBlock::new(p.sub("mid_block"), first, config),
            levels: (0..channels.len()).map(level).collect(),
            norm_out: GroupNorm::new(p.sub("conv_norm_out"), config.norm_num_groups, last, EPS),
            conv_out: Conv2d::same(p.sub("conv_out"), last, config.out_channels),
        }
    }

    fn forward(&self, latents: &Tensor) -> Tensor {
        let mut h = self.mid.forward(&self.conv_in.forward(latents));
        for (resnets, up) in &self.levels {
            for resnet in resnets {
                h = resnet.forward(&h, None);
            }
            if let Some(up) = up {
                h = up.forward(&h, None);
            }
        }
        self.conv_out.forward(&self.norm_out.forward_silu(&h))
    }
}
