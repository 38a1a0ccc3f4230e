//! The levels of the U-Net: on the way down, in the middle and on the way up. Names follow diffusers'
//! `models/unets/unet_2d_blocks.py`.

use crate::attention::{Transformer2D, TransformerShape};
use crate::layers::or_panic;
use crate::params::Scope;
use crate::resnet::{Downsample2D, ResnetBlock2D, ResnetShape, Upsample2D};
use std::sync::Arc;
use tch::Tensor;
use tidemill_torch::gradient_checkpoint;

/// What a level needs to know to be built.
#[derive(Clone, Copy, Debug)]
pub struct BlockShape {
    pub resnet: ResnetShape,
    /// `None` for levels without attention.
    pub transformer: Option<TransformerShape>,
    pub layers: i64,
}

/// What goes through the network beside its images.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// Embedded timesteps.
    pub time: &'a Tensor,
    /// Embedded captions.
    pub text: &'a Tensor,
    /// Whether layers keep nothing but their inputs for the backward pass.
    pub recompute: bool,
}

/// What can be computed again: it makes images of images and of what goes with them.
trait Recomputable: Sized {
    /// `x`: images, to be put one behind the other by channels.
    fn forward(&self, x: &[Tensor], time: &Tensor, text: &Tensor) -> Tensor;

    /// [`Self::forward`], as the pass wants it.
    fn run(self: &Arc<Self>, x: &[&Tensor], pass: Pass<'_>) -> Tensor {
        let Pass { time, text, recompute } = pass;
        if !recompute {
            let x: Vec<Tensor> = x.iter().map(|x| x.shallow_clone()).collect();
            return self.forward(&x, time, text);
        }
        let inputs: Vec<&Tensor> = [time, text].into_iter().chain(x.iter().copied()).collect();
        let computed = gradient_checkpoint(self, &inputs, |part, inputs| match inputs {
            [time, text, x @ ..] => part.forward(x, time, text),
            _ => unreachable!("there are as many inputs as above"),
        });
        or_panic(computed)
    }
}

/// A residual block and, on levels with attention, the transformer after it.
#[derive(Debug)]
struct Layer {
    resnet: ResnetBlock2D,
    attention: Option<Transformer2D>,
}

impl Layer {
    #[expect(clippy::arc_with_non_send_sync, reason = "a backward pass has it while its caller waits")]
    fn new(p: &Scope, index: i64, inputs: i64, outputs: i64, shape: BlockShape) -> Arc<Self> {
        Arc::new(Self {
            resnet: ResnetBlock2D::new(p.sub("resnets").sub(index), inputs, outputs, shape.resnet),
            attention: shape
                .transformer
                .map(|t| Transformer2D::new(p.sub("attentions").sub(index), outputs, t)),
        })
    }
}

impl Recomputable for Layer {
    fn forward(&self, x: &[Tensor], time: &Tensor, text: &Tensor) -> Tensor {
        let h = match x {
            [x] => self.resnet.forward(x, Some(time)),
            _ => self.resnet.forward(&Tensor::cat(x, 1), Some(time)),
        };
        match &self.attention {
            Some(attention) => attention.forward(&h, text),
            None => h,
        }
    }
}

/// A level on the way down. Every layer's output is kept for the way up.
#[derive(Debug)]
pub struct DownBlock {
    layers: Vec<Arc<Layer>>,
    downsampler: Option<Downsample2D>,
}

impl DownBlock {
    /// `downsample`: the padding of the strided convolution; `None` on the innermost level.
    pub fn new(p: Scope, inputs: i64, outputs: i64, shape: BlockShape, downsample: Option<i64>) -> Self {
        Self {
            layers: (0..shape.layers)
                .map(|i| Layer::new(&p, i, if i == 0 { inputs } else { outputs }, outputs, shape))
                .collect(),
            downsampler: downsample
                .map(|padding| Downsample2D::new(p.sub("downsamplers").sub(0), outputs, padding)),
        }
    }

    pub fn forward(&self, x: Tensor, pass: Pass<'_>, skips: &mut Vec<Tensor>) -> Tensor {
        let mut h = x;
        for layer in &self.layers {
            h = layer.run(&[&h], pass);
            skips.push(h.shallow_clone());
        }
        if let Some(down) = &self.downsampler {
            h = down.forward(&h);
            skips.push(h.shallow_clone());
        }
        h
    }
}

/// The middle: residual block, transformer, residual block.
#[derive(Debug)]
pub struct MidBlock {
    resnets: [ResnetBlock2D; 2],
    attention: Transformer2D,
}

impl MidBlock {
    #[expect(clippy::arc_with_non_send_sync, reason = "a backward pass has it while its caller waits")]
    pub fn new(p: Scope, channels: i64, resnet: ResnetShape, transformer: TransformerShape) -> Arc<Self> {
        let block = |i: usize| ResnetBlock2D::new(p.sub("resnets").sub(i), channels, channels, resnet);
        Arc::new(Self {
            resnets: [block(0), block(1)],
            attention: Transformer2D::new(p.sub("attentions").sub(0), channels, transformer),
        })
    }

    pub fn forward(self: &Arc<Self>, x: &Tensor, pass: Pass<'_>) -> Tensor {
        self.run(&[x], pass)
    }
}

impl Recomputable for MidBlock {
    fn forward(&self, x: &[Tensor], time: &Tensor, text: &Tensor) -> Tensor {
        let h = self.resnets[0].forward(&x[0], Some(time));
        self.resnets[1].forward(&self.attention.forward(&h, text), Some(time))
    }
}

/// A level on the way up: each layer takes one kept output of the way down beside its input.
#[derive(Debug)]
pub struct UpBlock {
    layers: Vec<Arc<Layer>>,
    upsampler: Option<Upsample2D>,
}

/// Channels that meet in an [`UpBlock`].
#[derive(Clone, Copy, Debug)]
pub struct UpChannels {
    /// Of what comes from below.
    pub below: i64,
    /// Of the level's outputs, and of all skips but the last.
    pub outputs: i64,
    /// Of the last skip, which the level above left.
    pub last_skip: i64,
}

impl UpBlock {
    pub fn new(p: Scope, channels: UpChannels, shape: BlockShape, upsample: bool) -> Self {
        let UpChannels { below, outputs, last_skip } = channels;
        let layer = |i| {
            let input = if i == 0 { below } else { outputs };
            let skip = if i + 1 == shape.layers { last_skip } else { outputs };
            Layer::new(&p, i, input + skip, outputs, shape)
        };
        Self {
            layers: (0..shape.layers).map(layer).collect(),
            upsampler: upsample.then(|| Upsample2D::new(p.sub("upsamplers").sub(0), outputs)),
        }
    }

    pub fn forward(&self, x: Tensor, pass: Pass<'_>, skips: &mut Vec<Tensor>) -> Tensor {
        let mut h = x;
        for layer in &self.layers {
            // As many skips were pushed as there are layers on the way up.
            if let Some(skip) = skips.pop() {
                h = layer.run(&[&h, &skip], pass);
            }
        }
        match &self.upsampler {
            // The size of the next skip, which for odd sizes is not twice this one's.
            Some(up) => up.forward(&h, skips.last().map(spatial)),
            None => h,
        }
    }
}

fn spatial(x: &Tensor) -> (i64, i64) {
    let size = x.size();
    (size[2], size[3])
}
