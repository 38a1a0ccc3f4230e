//! The VAE's encoder and decoder networks.

use tch::Tensor;

use super::config::{EPS, VaeConfig};
use crate::layers::{
    Attention, Conv2d, Downsample2D, GroupNorm, ResnetBlock2D, Upsample2D, to_image, to_sequence,
};
use crate::params::Scope;

/// Residual block, attention over all pixels, residual block.
#[derive(Debug)]
struct MidBlock {
    resnets: [ResnetBlock2D; 2],
    attention: Option<(GroupNorm, Attention)>,
}

impl MidBlock {
    fn new(scope: Scope, channels: i64, config: &VaeConfig) -> Self {
        let resnet = |i: usize| {
            ResnetBlock2D::new(scope.child("resnets").child(i), channels, channels, config.resnet())
        };
        let attention = config.mid_block_add_attention.then(|| {
            let scope = scope.child("attentions").child(0);
            let norm = GroupNorm::new(scope.child("group_norm"), config.norm_num_groups, channels, EPS);
            (norm, Attention::new_single_head(scope, channels))
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

/// The levels from image to latents.
#[derive(Debug)]
pub struct Encoder {
    conv_in: Conv2d,
    /// Residual blocks of each level, and the change of size behind them.
    levels: Vec<(Vec<ResnetBlock2D>, Option<Downsample2D>)>,
    mid: MidBlock,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Encoder {
    pub fn new(scope: Scope, config: &VaeConfig) -> Self {
        let channels = &config.block_out_channels;
        let (first, last) = (channels[0], channels[channels.len() - 1]);
        let level = |i: usize| {
            let scope = scope.child("down_blocks").child(i);
            let inputs = if i == 0 { first } else { channels[i - 1] };
            let resnets = (0..config.layers_per_block).map(|j| {
                let inputs = if j == 0 { inputs } else { channels[i] };
                ResnetBlock2D::new(scope.child("resnets").child(j), inputs, channels[i], config.resnet())
            });
            let down = (i + 1 < channels.len())
                .then(|| Downsample2D::new(scope.child("downsamplers").child(0), channels[i], 0));
            (resnets.collect(), down)
        };
        Self {
            conv_in: Conv2d::new_3x3(scope.child("conv_in"), config.in_channels, first),
            levels: (0..channels.len()).map(level).collect(),
            mid: MidBlock::new(scope.child("mid_block"), last, config),
            norm_out: GroupNorm::new(scope.child("conv_norm_out"), config.norm_num_groups, last, EPS),
            conv_out: Conv2d::new_3x3(scope.child("conv_out"), last, 2 * config.latent_channels),
        }
    }

    /// Images [N, 3, H, W] to [N, 2 C, H/d, W/d].
    pub fn forward(&self, images: &Tensor) -> Tensor {
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

/// The levels from latents to image.
#[derive(Debug)]
pub struct Decoder {
    conv_in: Conv2d,
    mid: MidBlock,
    /// Residual blocks of each level, and the change of size behind them.
    levels: Vec<(Vec<ResnetBlock2D>, Option<Upsample2D>)>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Decoder {
    pub fn new(scope: Scope, config: &VaeConfig) -> Self {
        let channels: Vec<i64> = config.block_out_channels.iter().rev().copied().collect();
        let (first, last) = (channels[0], channels[channels.len() - 1]);
        let level = |i: usize| {
            let scope = scope.child("up_blocks").child(i);
            let inputs = if i == 0 { first } else { channels[i - 1] };
            let resnets = (0..=config.layers_per_block).map(|j| {
                let inputs = if j == 0 { inputs } else { channels[i] };
                ResnetBlock2D::new(scope.child("resnets").child(j), inputs, channels[i], config.resnet())
            });
            let up = (i + 1 < channels.len())
                .then(|| Upsample2D::new(scope.child("upsamplers").child(0), channels[i]));
            (resnets.collect(), up)
        };
        Self {
            conv_in: Conv2d::new_3x3(scope.child("conv_in"), config.latent_channels, first),
            mid: MidBlock::new(scope.child("mid_block"), first, config),
            levels: (0..channels.len()).map(level).collect(),
            norm_out: GroupNorm::new(scope.child("conv_norm_out"), config.norm_num_groups, last, EPS),
            conv_out: Conv2d::new_3x3(scope.child("conv_out"), last, config.out_channels),
        }
    }

    /// Latents [N, C, h, w] to images [N, 3, h d, w d].
    pub fn forward(&self, latents: &Tensor) -> Tensor {
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
