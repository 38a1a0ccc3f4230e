//! The convolutional blocks that the VAE and the U-Net share: residual block, downsampling and
//! upsampling. Names follow diffusers' `models/resnet.py`, `downsampling.py` and `upsampling.py`.

use tch::Tensor;

use super::conv::Conv2d;
use super::linear::Linear;
use super::norm::GroupNorm;
use crate::params::Scope;

/// Twice GroupNorm, SiLU and convolution, with a residual around them. The U-Net adds a time
/// embedding in between.
#[derive(Debug)]
pub struct ResnetBlock2D {
    norm1: GroupNorm,
    conv1: Conv2d,
    time_emb_proj: Option<Linear>,
    norm2: GroupNorm,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
}

/// The settings that all residual blocks of a network share.
#[derive(Clone, Copy, Debug)]
pub struct ResnetConfig {
    pub groups: i64,
    pub eps: f64,
    /// Width of the time embedding; `None` for the VAE.
    pub time_embedding: Option<i64>,
}

impl ResnetBlock2D {
    pub fn new(scope: Scope, inputs: i64, outputs: i64, config: ResnetConfig) -> Self {
        let ResnetConfig { groups, eps, time_embedding } = config;
        Self {
            norm1: GroupNorm::new(scope.child("norm1"), groups, inputs, eps),
            conv1: Conv2d::new_3x3(scope.child("conv1"), inputs, outputs),
            time_emb_proj: time_embedding.map(|n| Linear::new(scope.child("time_emb_proj"), n, outputs)),
            norm2: GroupNorm::new(scope.child("norm2"), groups, outputs, eps),
            conv2: Conv2d::new_3x3(scope.child("conv2"), outputs, outputs),
            conv_shortcut: (inputs != outputs)
                .then(|| Conv2d::new_1x1(scope.child("conv_shortcut"), inputs, outputs)),
        }
    }

    /// `x`: [N, inputs, H, W]; `time`: SiLU of the time embedding, [N, E]. Returns [N, outputs, H,
    /// W].
    pub fn forward(&self, x: &Tensor, time: Option<&Tensor>) -> Tensor {
        let (x, h) = self.norm1.forward_silu_with_residual(x);
        let h = match (&self.time_emb_proj, time) {
            (Some(project), Some(time)) => self.conv1.forward_with_image_bias(&h, &project.forward(time)),
            _ => self.conv1.forward(&h),
        };
        let h = self.norm2.forward_silu(&h);
        match &self.conv_shortcut {
            Some(shortcut) => Conv2d::forward_sum([(shortcut, &x), (&self.conv2, &h)]),
            None => self.conv2.forward_with_residual(&h, &x),
        }
    }
}

/// Halves height and width with a strided convolution.
#[derive(Debug)]
pub struct Downsample2D {
    conv: Conv2d,
    /// Pads below and at the right only.
    pads_one_side: bool,
}

impl Downsample2D {
    /// `padding`: that of the convolution; with 0 (the VAE) one row and one column of zeros are
    /// added below and at the right only.
    pub fn new(scope: Scope, channels: i64, padding: i64) -> Self {
        let conv = Conv2d::new(scope.child("conv"), channels, channels, 3, 2, padding);
        Self { conv, pads_one_side: padding == 0 }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        if self.pads_one_side {
            self.conv.forward(&x.constant_pad_nd([0, 1, 0, 1]))
        } else {
            self.conv.forward(x)
        }
    }
}

/// Enlarges images by nearest neighbour, then convolves them.
#[derive(Debug)]
pub struct Upsample2D {
    conv: Conv2d,
}

impl Upsample2D {
    pub fn new(scope: Scope, channels: i64) -> Self {
        Self { conv: Conv2d::new_3x3(scope.child("conv"), channels, channels) }
    }

    /// `size`: height and width of the result, for the U-Net's skip connections of odd sizes;
    /// `None` doubles the size.
    pub fn forward(&self, x: &Tensor, size: Option<(i64, i64)>) -> Tensor {
        let (height, width) = size.unwrap_or_else(|| {
            let s = x.size();
            (s[2] * 2, s[3] * 2)
        });
        self.conv.forward(&x.upsample_nearest2d([height, width], None, None))
    }
}
