//! The blocks of the U-Net: the levels of the downward path, the middle, and the levels of the
//! upward path. Names follow diffusers' `models/unets/unet_2d_blocks.py`.

use std::cell::Cell;
use std::sync::Arc;

use tch::Tensor;
use tidemill_torch::gradient_checkpoint;

use crate::GradientCheckpointing;
use crate::layers::{
    Downsample2D, ResnetBlock2D, ResnetConfig, Transformer2D, TransformerConfig, Upsample2D, unwrap_or_panic,
};
use crate::params::{Params, Scope};

/// The settings of a level.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    pub resnet: ResnetConfig,
    /// `None` for levels without attention.
    pub transformer: Option<TransformerConfig>,
    /// The number of residual blocks.
    pub layers: i64,
}

/// The inputs that all layers of a forward pass share.
#[derive(Clone, Copy, Debug)]
pub struct PassInputs<'a> {
    /// Embedded timesteps.
    pub time: &'a Tensor,
    /// Embedded captions.
    pub text: &'a Tensor,
    /// What the backward pass computes again.
    pub checkpointing: GradientCheckpointing,
    /// The network's parameters.
    pub params: &'a Params,
    /// The shard unit that comes next.
    pub next_unit: &'a Cell<usize>,
}

/// A part of the network that gradient checkpointing can compute again. It is a shard unit.
trait Checkpointable: Sized {
    /// `x`: images, which are concatenated along their channels; `time` and `text` as in
    /// [`PassInputs`]. With `checkpoint_mlps` the backward pass computes the hidden states of MLPs again.
    fn forward(&self, x: &[Tensor], time: &Tensor, text: &Tensor, checkpoint_mlps: bool) -> Tensor;

    /// [`Self::forward`] as the next shard unit, with gradient checkpointing if the pass uses it.
    fn run(self: &Arc<Self>, x: &[&Tensor], pass: PassInputs<'_>) -> Tensor {
        let unit = pass.next_unit.replace(pass.next_unit.get() + 1);
        pass.params.begin_shard_unit(unit);
        let output = self.run_checkpointed(x, pass);
        pass.params.end_shard_unit(unit, [&output]);
        output
    }

    fn run_checkpointed(self: &Arc<Self>, x: &[&Tensor], pass: PassInputs<'_>) -> Tensor {
        let PassInputs { time, text, checkpointing, .. } = pass;
        if checkpointing != GradientCheckpointing::Full {
            let x: Vec<Tensor> = x.iter().map(|x| x.shallow_clone()).collect();
            return self.forward(&x, time, text, checkpointing == GradientCheckpointing::Selective);
        }
        let inputs: Vec<&Tensor> = [time, text].into_iter().chain(x.iter().copied()).collect();
        let output = gradient_checkpoint(self, &inputs, |part, inputs, _| match inputs {
            [time, text, x @ ..] => part.forward(x, time, text, false),
            _ => unreachable!("time and text are the first inputs"),
        });
        unwrap_or_panic(output)
    }
}

/// A residual block and, on levels with attention, the transformer after it.
#[derive(Debug)]
struct Layer {
    resnet: ResnetBlock2D,
    attention: Option<Transformer2D>,
}

impl Layer {
    #[expect(clippy::arc_with_non_send_sync, reason = "a backward pass uses it while its caller waits")]
    fn new(scope: &Scope, index: i64, inputs: i64, outputs: i64, config: BlockConfig) -> Arc<Self> {
        Arc::new(Self {
            resnet: ResnetBlock2D::new(scope.child("resnets").child(index), inputs, outputs, config.resnet),
            attention: config
                .transformer
                .map(|t| Transformer2D::new(scope.child("attentions").child(index), outputs, t)),
        })
    }
}

impl Checkpointable for Layer {
    fn forward(&self, x: &[Tensor], time: &Tensor, text: &Tensor, checkpoint_mlps: bool) -> Tensor {
        let h = match x {
            [x] => self.resnet.forward(x, Some(time)),
            _ => self.resnet.forward(&Tensor::cat(x, 1), Some(time)),
        };
        match &self.attention {
            Some(attention) => attention.forward(&h, text, checkpoint_mlps),
            None => h,
        }
    }
}

/// A level of the downward path. Every layer's output is a skip connection to the upward path.
#[derive(Debug)]
pub struct DownBlock {
    layers: Vec<Arc<Layer>>,
    downsampler: Option<Downsample2D>,
}

impl DownBlock {
    /// `downsample`: the padding of the strided convolution; `None` on the innermost level.
    pub fn new(
        scope: Scope,
        inputs: i64,
        outputs: i64,
        config: BlockConfig,
        downsample: Option<i64>,
    ) -> Self {
        Self {
            layers: (0..config.layers)
                .map(|i| Layer::new(&scope, i, if i == 0 { inputs } else { outputs }, outputs, config))
                .collect(),
            downsampler: downsample
                .map(|padding| Downsample2D::new(scope.child("downsamplers").child(0), outputs, padding)),
        }
    }

    pub fn forward(&self, x: Tensor, pass: PassInputs<'_>, skips: &mut Vec<Tensor>) -> Tensor {
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
    #[expect(clippy::arc_with_non_send_sync, reason = "a backward pass uses it while its caller waits")]
    pub fn new(
        scope: Scope,
        channels: i64,
        resnet: ResnetConfig,
        transformer: TransformerConfig,
    ) -> Arc<Self> {
        let block =
            |i: usize| ResnetBlock2D::new(scope.child("resnets").child(i), channels, channels, resnet);
        Arc::new(Self {
            resnets: [block(0), block(1)],
            attention: Transformer2D::new(scope.child("attentions").child(0), channels, transformer),
        })
    }

    pub fn forward(self: &Arc<Self>, x: &Tensor, pass: PassInputs<'_>) -> Tensor {
        self.run(&[x], pass)
    }
}

impl Checkpointable for MidBlock {
    fn forward(&self, x: &[Tensor], time: &Tensor, text: &Tensor, checkpoint_mlps: bool) -> Tensor {
        let h = self.resnets[0].forward(&x[0], Some(time));
        self.resnets[1].forward(&self.attention.forward(&h, text, checkpoint_mlps), Some(time))
    }
}

/// A level of the upward path: each layer takes its input and one skip connection.
#[derive(Debug)]
pub struct UpBlock {
    layers: Vec<Arc<Layer>>,
    upsampler: Option<Upsample2D>,
}

/// The channels of an [`UpBlock`]'s inputs and outputs.
#[derive(Clone, Copy, Debug)]
pub struct UpChannels {
    /// Channels of the input, which the level below computed.
    pub below: i64,
    /// Channels of the level's outputs, and of all skip connections but the last.
    pub outputs: i64,
    /// Channels of the last skip connection, which the next outer level of the downward path left.
    pub last_skip: i64,
}

impl UpBlock {
    pub fn new(scope: Scope, channels: UpChannels, config: BlockConfig, upsample: bool) -> Self {
        let UpChannels { below, outputs, last_skip } = channels;
        let layer = |i| {
            let input = if i == 0 { below } else { outputs };
            let skip = if i + 1 == config.layers { last_skip } else { outputs };
            Layer::new(&scope, i, input + skip, outputs, config)
        };
        Self {
            layers: (0..config.layers).map(layer).collect(),
            upsampler: upsample.then(|| Upsample2D::new(scope.child("upsamplers").child(0), outputs)),
        }
    }

    pub fn forward(&self, x: Tensor, pass: PassInputs<'_>, skips: &mut Vec<Tensor>) -> Tensor {
        let mut h = x;
        for layer in &self.layers {
            // The downward path pushed as many skips as the upward path has layers.
            if let Some(skip) = skips.pop() {
                h = layer.run(&[&h, &skip], pass);
            }
        }
        match &self.upsampler {
            // The size of the next skip, which is not twice this size if it is odd.
            Some(up) => up.forward(&h, skips.last().map(height_and_width)),
            None => h,
        }
    }
}

fn height_and_width(x: &Tensor) -> (i64, i64) {
    let size = x.size();
    (size[2], size[3])
}
