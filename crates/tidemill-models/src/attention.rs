//! Attention as the U-Net and the VAE use it: multi-head attention, the transformer block with self-
//! and cross-attention, and the wrapper that runs it over an image. Names follow diffusers'
//! `models/attention.py` and `models/transformers/transformer_2d.py`.

use crate::layers::{Conv2d, GroupNorm, LayerNorm, Linear};
use crate::params::Scope;
use tch::{Device, Kind, Tensor};

/// softmax(q k^T / sqrt(d)) v by libtorch's fastest path for the shape.
/// `q`, `k`, `v`: [N, heads, length, d].
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Tensor {
    Tensor::scaled_dot_product_attention(q, k, v, None::<Tensor>, 0.0, causal, None, false)
}

/// [N, L, heads d] -> [N, heads, L, d].
pub fn split_heads(x: &Tensor, heads: i64) -> Tensor {
    let (n, length, width) = size3(x);
    x.reshape([n, length, heads, width / heads]).transpose(1, 2)
}

/// [N, heads, L, d] -> [N, L, heads d].
pub fn join_heads(x: &Tensor) -> Tensor {
    let size = x.size();
    x.transpose(1, 2).reshape([size[0], size[2], size[1] * size[3]])
}

fn size3(x: &Tensor) -> (i64, i64, i64) {
    let size = x.size();
    (size[0], size[1], size[2])
}

/// Multi-head attention of a sequence to itself or to another.
#[derive(Debug)]
pub struct Attention {
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: Linear,
    heads: i64,
    upcast: bool,
}

impl Attention {
    /// U-Net attention: no bias on q, k and v. `context`: width of the sequence attended to.
    pub fn new(p: Scope, width: i64, context: i64, heads: i64, upcast: bool) -> Self {
        Self {
            to_q: Linear::without_bias(p.sub("to_q"), width, width),
            to_k: Linear::without_bias(p.sub("to_k"), context, width),
            to_v: Linear::without_bias(p.sub("to_v"), context, width),
            to_out: Linear::new(p.sub("to_out").sub(0), width, width),
            heads,
            upcast,
        }
    }

    /// VAE attention: one head, bias everywhere.
    pub fn single_head(p: Scope, width: i64) -> Self {
        Self {
            to_q: Linear::new(p.sub("to_q"), width, width),
            to_k: Linear::new(p.sub("to_k"), width, width),
            to_v: Linear::new(p.sub("to_v"), width, width),
            to_out: Linear::new(p.sub("to_out").sub(0), width, width),
            heads: 1,
            upcast: false,
        }
    }

    /// `x`: [N, L, width]; `context`: [N, M, context width]. Gives [N, L, width].
    pub fn forward(&self, x: &Tensor, context: &Tensor) -> Tensor {
        let kind = x.kind();
        let head = |t: Tensor| {
            let t = split_heads(&t, self.heads);
            if self.upcast { t.to_kind(Kind::Float) } else { t }
        };
        let q = head(self.to_q.forward(x));
        let k = head(self.to_k.forward(context));
        let v = head(self.to_v.forward(context));
        self.to_out.forward(&join_heads(&attend(&q, &k, &v, false)).to_kind(kind))
    }
}

/// The gated MLP of the transformer block: GEGLU (Shazeer, 2020) with four times the width.
#[derive(Debug)]
struct FeedForward {
    proj: Linear,
    out: Linear,
}

impl FeedForward {
    fn new(p: Scope, width: i64) -> Self {
        let net = p.sub("net");
        Self {
            proj: Linear::new(net.sub(0).sub("proj"), width, width * 8),
            out: Linear::new(net.sub(2), width * 4, width),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let both = self.proj.forward(x).chunk(2, -1);
        self.out.forward(&(&both[0] * both[1].gelu("none")))
    }
}

/// Self-attention, cross-attention to the text, MLP; each normalised before and added after.
#[derive(Debug)]
struct BasicTransformerBlock {
    norm1: LayerNorm,
    attn1: Attention,
    norm2: LayerNorm,
    attn2: Attention,
    norm3: LayerNorm,
    ff: FeedForward,
}

impl BasicTransformerBlock {
    fn new(p: Scope, width: i64, shape: TransformerShape) -> Self {
        let norm = |name| LayerNorm::new(p.sub(name), width, 1e-5);
        let TransformerShape { heads, context, upcast, .. } = shape;
        Self {
            norm1: norm("norm1"),
            attn1: Attention::new(p.sub("attn1"), width, width, heads, upcast),
            norm2: norm("norm2"),
            attn2: Attention::new(p.sub("attn2"), width, context, heads, upcast),
            norm3: norm("norm3"),
            ff: FeedForward::new(p.sub("ff"), width),
        }
    }

    fn forward(&self, x: &Tensor, text: &Tensor) -> Tensor {
        let h = self.norm1.forward(x);
        let x = x + self.attn1.forward(&h, &h);
        let x = &x + self.attn2.forward(&self.norm2.forward(&x), text);
        &x + self.ff.forward(&self.norm3.forward(&x))
    }
}

/// What a level's transformers have in common.
#[derive(Clone, Copy, Debug)]
pub struct TransformerShape {
    pub groups: i64,
    pub heads: i64,
    /// Width of the text embedding.
    pub context: i64,
    /// Transformer blocks in a row.
    pub layers: i64,
    /// Linear maps on the sequence (SD 2.x) instead of 1x1 convolutions on the image (SD 1.x).
    pub linear_projection: bool,
    /// Attention in f32 (SD 2.1).
    pub upcast: bool,
}

/// The way from image to sequence or back.
#[derive(Debug)]
enum Projection {
    Conv(Conv2d),
    Linear(Linear),
}

/// Transformer blocks over the pixels of an image, with a residual around them.
#[derive(Debug)]
pub struct Transformer2D {
    norm: GroupNorm,
    proj_in: Projection,
    blocks: Vec<BasicTransformerBlock>,
    proj_out: Projection,
}

impl Transformer2D {
    pub fn new(p: Scope, channels: i64, shape: TransformerShape) -> Self {
        let projection = |name| {
            if shape.linear_projection {
                Projection::Linear(Linear::new(p.sub(name), channels, channels))
            } else {
                Projection::Conv(Conv2d::pointwise(p.sub(name), channels, channels))
            }
        };
        let blocks = p.sub("transformer_blocks");
        Self {
            norm: GroupNorm::new(p.sub("norm"), shape.groups, channels, 1e-6),
            proj_in: projection("proj_in"),
            blocks: (0..shape.layers)
                .map(|i| BasicTransformerBlock::new(blocks.sub(i), channels, shape))
                .collect(),
            proj_out: projection("proj_out"),
        }
    }

    /// `x`: [N, C, H, W]; `text`: [N, L, context]. Gives [N, C, H, W].
    pub fn forward(&self, x: &Tensor, text: &Tensor) -> Tensor {
        let h = self.norm.forward(x);
        let mut h = match &self.proj_in {
            Projection::Conv(conv) => to_sequence(&conv.forward(&h)),
            Projection::Linear(linear) => linear.forward(&to_sequence(&h)),
        };
        for block in &self.blocks {
            h = block.forward(&h, text);
        }
        let h = match &self.proj_out {
            Projection::Conv(conv) => conv.forward(&to_image(&h, x)),
            Projection::Linear(linear) => to_image(&linear.forward(&h), x),
        };
        h + x
    }
}

/// [N, C, H, W] -> [N, H W, C].
pub fn to_sequence(x: &Tensor) -> Tensor {
    x.flatten(2, 3).transpose(1, 2)
}

/// [N, H W, C] -> [N, C, H, W], with the sizes of `like`. A view of the sequence would lie channels-last, and with it what follows;
/// on a CPU, where the rest is contiguous, layers would go on to convert one into the other.
pub fn to_image(x: &Tensor, like: &Tensor) -> Tensor {
    let image = x.transpose(1, 2).reshape(like.size());
    if image.device() == Device::Cpu { image.contiguous() } else { image }
}
