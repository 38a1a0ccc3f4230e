//! The transformer of the U-Net: the block with self-attention and cross-attention, and the wrapper
//! that runs it on an image. Names follow diffusers' `models/attention.py` and
//! `models/transformers/transformer_2d.py`.

use std::sync::Arc;

use tch::Tensor;

use super::attention::Attention;
use super::conv::Conv2d;
use super::feed_forward::{FeedForward, FeedForwardActivation};
use super::image_sequence::{to_image, to_sequence};
use super::linear::Linear;
use super::norm::{GroupNorm, LayerNorm};
use crate::params::Scope;

/// Self-attention, cross-attention to the text, and MLP, each behind a layer norm and with a
/// residual.
#[derive(Debug)]
struct BasicTransformerBlock {
    norm1: LayerNorm,
    attn1: Attention,
    norm2: LayerNorm,
    attn2: Attention,
    norm3: LayerNorm,
    ff: Arc<FeedForward>,
}

impl BasicTransformerBlock {
    fn new(scope: Scope, width: i64, config: TransformerConfig) -> Self {
        let norm = |name| LayerNorm::new(scope.child(name), width, 1e-5);
        let TransformerConfig { heads, context_width, .. } = config;
        Self {
            norm1: norm("norm1"),
            attn1: Attention::new(scope.child("attn1"), width, width, heads),
            norm2: norm("norm2"),
            attn2: Attention::new(scope.child("attn2"), width, context_width, heads),
            norm3: norm("norm3"),
            ff: FeedForward::new(scope.child("ff"), width, FeedForwardActivation::Geglu),
        }
    }

    fn forward(&self, x: &Tensor, text: &Tensor, checkpoint_mlp: bool) -> Tensor {
        let (x, h) = self.norm1.forward_sum(x, None);
        let (x, h) = self.norm2.forward_sum(&x, Some(&self.attn1.forward(&h, None)));
        let (x, h) = self.norm3.forward_sum(&x, Some(&self.attn2.forward(&h, Some(text))));
        x + self.ff.forward(&h, checkpoint_mlp)
    }
}

/// The settings that the transformers of a level share.
#[derive(Clone, Copy, Debug)]
pub struct TransformerConfig {
    pub groups: i64,
    pub heads: i64,
    /// Width of the text embedding.
    pub context_width: i64,
    /// Number of transformer blocks, one after the other.
    pub layers: i64,
    /// Whether the projections are linear layers on the sequence (SD 2.x) or 1x1 convolutions on
    /// the image (SD 1.x).
    pub use_linear_projection: bool,
}

/// The projection from image to sequence or back.
#[derive(Debug)]
enum Projection {
    Conv(Conv2d),
    Linear(Linear),
}

/// Transformer blocks on the pixels of an image as a sequence, with a residual around them.
#[derive(Debug)]
pub struct Transformer2D {
    norm: GroupNorm,
    proj_in: Projection,
    blocks: Vec<BasicTransformerBlock>,
    proj_out: Projection,
}

impl Transformer2D {
    pub fn new(scope: Scope, channels: i64, config: TransformerConfig) -> Self {
        let projection = |name| {
            if config.use_linear_projection {
                Projection::Linear(Linear::new(scope.child(name), channels, channels))
            } else {
                Projection::Conv(Conv2d::new_1x1(scope.child(name), channels, channels))
            }
        };
        let blocks = scope.child("transformer_blocks");
        Self {
            norm: GroupNorm::new(scope.child("norm"), config.groups, channels, 1e-6),
            proj_in: projection("proj_in"),
            blocks: (0..config.layers)
                .map(|i| BasicTransformerBlock::new(blocks.child(i), channels, config))
                .collect(),
            proj_out: projection("proj_out"),
        }
    }

    /// `x`: [N, C, H, W]; `text`: [N, L, context width]. Returns [N, C, H, W]. With `checkpoint_mlps` the backward
    /// pass computes the hidden states of MLPs again.
    pub fn forward(&self, x: &Tensor, text: &Tensor, checkpoint_mlps: bool) -> Tensor {
        let (residual, h) = self.norm.forward_with_residual(x);
        let mut h = match &self.proj_in {
            Projection::Conv(conv) => to_sequence(&conv.forward(&h)),
            Projection::Linear(linear) => linear.forward(&to_sequence(&h)),
        };
        for block in &self.blocks {
            h = block.forward(&h, text, checkpoint_mlps);
        }
        let h = match &self.proj_out {
            Projection::Conv(conv) => conv.forward(&to_image(&h, &residual)),
            Projection::Linear(linear) => to_image(&linear.forward(&h), &residual),
        };
        h + residual
    }
}
