//! The convolutional blocks that the VAE and the U-Net share: residual block, down- and upsampling.
//! Names follow diffusers' `models/resnet.py`, `downsampling.py` and `upsampling.py`.

use crate::layers::{Conv2d, GroupNorm, Linear};
use crate::params::Scope;
use tch::Tensor;

/// GroupNorm, SiLU, convolution, twice, around a time embedding (U-Net only) and with a residual.
#[derive(Debug)]
pub struct ResnetBlock2D {
    norm1: GroupNorm,
    conv1: Conv2d,
    time_emb_proj: Option<Linear>,
    norm2: GroupNorm,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
}

/// What all residual blocks of a network have in common.
#[derive(Clone, Copy, Debug)]
pub struct ResnetShape {
    pub groups: i64,
    pub eps: f64,
    /// Size of the time embedding, where there is one.
    pub time_embedding: Option<i64>,
}

impl ResnetBlock2D {
    pub fn new(p: Scope, inputs: i64, outputs: i64, shape: ResnetShape) -> Self {
        let ResnetShape { groups, eps, time_embedding } = shape;
        Self {
            norm1: GroupNorm::new(p.sub("norm1"), groups, inputs, eps),
            conv1: Conv2d::same(p.sub("conv1"), inputs, outputs),
            time_emb_proj: time_embedding.map(|n| Linear::new(p.sub("time_emb_proj"), n, outputs)),
            norm2: GroupNorm::new(p.sub("norm2"), groups, outputs, eps),
            conv2: Conv2d::same(p.sub("conv2"), outputs, outputs),
            conv_shortcut: (inputs != outputs)
                .then(|| Conv2d::pointwise(p.sub("conv_shortcut"), inputs, outputs)),
        }
    }

    /// `x`: [N, inputs, H, W]; `time`: SiLU of the time embedding, [N, E]. Gives [N, outputs, H, W].
    pub fn forward(&self, x: &Tensor, time: Option<&Tensor>) -> Tensor {
        let (x, h) = self.norm1.beside_silu(x);
        let h = match (&self.time_emb_proj, time) {
            (Some(project), Some(time)) => self.conv1.forward_adding(&h, &project.forward(time)),
            _ => self.conv1.forward(&h),
        };
        let h = self.norm2.forward_silu(&h);
        match &self.conv_shortcut {
            Some(shortcut) => Conv2d::sum_of([(shortcut, &x), (&self.conv2, &h)]),
            None => self.conv2.forward_onto(&h, &x),
        }
    }
}

/// Halves height and width with a strided convolution.
#[derive(Debug)]
pub struct Downsample2D {
    conv: Conv2d,
    asymmetric: bool,
}

impl Downsample2D {
    /// With `padding` 0 (the VAE), one row and column of zeros are added below and at the right only.
    pub fn new(p: Scope, channels: i64, padding: i64) -> Self {
        let conv = Conv2d::new(p.sub("conv"), channels, channels, 3, 2, padding);
        Self { conv, asymmetric: padding == 0 }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        if self.asymmetric {
            self.conv.forward(&x.constant_pad_nd([0, 1, 0, 1]))
        } else {
            self.conv.forward(x)
        }
    }
}

/// Enlarges by nearest neighbour, then convolves.
#[derive(Debug)]
pub struct Upsample2D {
    conv: Conv2d,
}

impl Upsample2D {
    pub fn new(p: Scope, channels: i64) -> Self {
        Self { conv: Conv2d::same(p.sub("conv"), channels, channels) }
    }

    /// `size`: the height and width to reach; twice the input's where the U-Net's skip connection
    /// does not ask for another (odd sizes).
    pub fn forward(&self, x: &Tensor, size: Option<(i64, i64)>) -> Tensor {
        let (height, width) = size.unwrap_or_else(|| {
            let s = x.size();
            (s[2] * 2, s[3] * 2)
        });
        self.conv.forward(&x.upsample_nearest2d([height, width], None, None))
    }
}
