//! Attention as the U-Net and the VAE use it: multi-head attention, the transformer block with self-
//! and cross-attention, and the wrapper that runs it over an image. Names follow diffusers'
//! `models/attention.py` and `models/transformers/transformer_2d.py`.

use crate::layers::{Conv2d, GroupNorm, LayerNorm, Linear, or_panic};
use crate::params::Scope;
use tch::{Device, Kind, Tensor};
use tidemill_torch::without_cudnn_attention;

/// Keys that a query may have for [`attend_in_products`] to be faster than libtorch's flash attention on a CPU.
const FEW_KEYS: i64 = 256;

/// softmax(q k^T / sqrt(d)) v by the fastest of libtorch's paths for the shape.
/// `q`, `k`, `v`: [N, heads, length, d].
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Tensor {
    // There flash attention makes many small products, one after the other, and setting each up in bf16 takes longer than
    // making it: forward and backward pass take two to three times as long with few keys, and as long with 1,024.
    let keys = k.size()[2];
    let bf16_on_cpu = q.device() == Device::Cpu && q.kind() == Kind::BFloat16;
    if bf16_on_cpu && !causal && keys <= FEW_KEYS {
        return attend_in_products(q, k, v);
    }
    let attend = || Tensor::scaled_dot_product_attention(q, k, v, None::<Tensor>, 0.0, causal, None, false);
    if q.device().is_cuda() && keys % 128 == 64 {
        // cuDNN 9.19's backward pass on Hopper goes through keys by 128 and masks them by 64: with a mask at least, of a query whose
        // scores are all far below zero it makes a gradient that is no number (pytorch/pytorch#196678).
        return or_panic(without_cudnn_attention(attend));
    }
    attend()
}

/// Attention as two batched products with a softmax between them, whose result is kept for the backward pass.
fn attend_in_products(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let size = q.size();
    let (scale, options) = (1.0 / (size[3] as f64).sqrt(), (q.kind(), q.device()));
    let merge = |x: &Tensor| x.flatten(0, 1);
    let zero = Tensor::zeros([1, 1, 1], options);
    let scores = zero.baddbmm(&merge(q), &merge(k).transpose(1, 2), 0.0, scale);
    scores.softmax(-1, None).bmm(&merge(v)).view(size.as_slice())
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
}

impl Attention {
    /// U-Net attention: no bias on q, k and v. `context`: width of the sequence attended to.
    pub fn new(p: Scope, width: i64, context: i64, heads: i64) -> Self {
        Self {
            to_q: Linear::without_bias(p.sub("to_q"), width, width),
            to_k: Linear::without_bias(p.sub("to_k"), context, width),
            to_v: Linear::without_bias(p.sub("to_v"), context, width),
            to_out: Linear::new(p.sub("to_out").sub(0), width, width),
            heads,
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
        }
    }

    /// `x`: [N, L, width]; `context`, what x attends to if not itself: [N, M, context width]. Gives [N, L, width].
    pub fn forward(&self, x: &Tensor, context: Option<&Tensor>) -> Tensor {
        let [q, k, v] = match context {
            None => Linear::all_of(x, [&self.to_q, &self.to_k, &self.to_v]),
            Some(context) => [self.to_q.forward(x), self.to_k.forward(context), self.to_v.forward(context)],
        };
        let [q, k, v] = [q, k, v].map(|t| split_heads(&t, self.heads));
        self.to_out.forward(&join_heads(&attend(&q, &k, &v, false)))
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
        self.out.forward(&self.proj.forward_geglu(x))
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
        let TransformerShape { heads, context, .. } = shape;
        Self {
            norm1: norm("norm1"),
            attn1: Attention::new(p.sub("attn1"), width, width, heads),
            norm2: norm("norm2"),
            attn2: Attention::new(p.sub("attn2"), width, context, heads),
            norm3: norm("norm3"),
            ff: FeedForward::new(p.sub("ff"), width),
        }
    }

    fn forward(&self, x: &Tensor, text: &Tensor) -> Tensor {
        let (x, h) = self.norm1.of_sum(x, None);
        let (x, h) = self.norm2.of_sum(&x, Some(&self.attn1.forward(&h, None)));
        let (x, h) = self.norm3.of_sum(&x, Some(&self.attn2.forward(&h, Some(text))));
        x + self.ff.forward(&h)
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
        let (x, h) = self.norm.beside(x);
        let mut h = match &self.proj_in {
            Projection::Conv(conv) => to_sequence(&conv.forward(&h)),
            Projection::Linear(linear) => linear.forward(&to_sequence(&h)),
        };
        for block in &self.blocks {
            h = block.forward(&h, text);
        }
        let h = match &self.proj_out {
            Projection::Conv(conv) => conv.forward(&to_image(&h, &x)),
            Projection::Linear(linear) => to_image(&linear.forward(&h), &x),
        };
        h + x
    }
}

/// [N, C, H, W] -> [N, H W, C].
pub fn to_sequence(x: &Tensor) -> Tensor {
    x.flatten(2, 3).transpose(1, 2)
}

/// [N, H W, C] -> [N, C, H, W], with the sizes of `like`. A view of the sequence would lie channels-last, and with it what follows;
/// where the rest is contiguous, layers would go on to convert one into the other.
pub fn to_image(x: &Tensor, like: &Tensor) -> Tensor {
    let image = x.transpose(1, 2).reshape(like.size());
    if like.is_contiguous() { image.contiguous() } else { image }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What attention gives, and its gradients by query, key and value: [8, L, 2 64] each.
    fn pass(
        inputs: &[Tensor; 3],
        kind: Kind,
        attend: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Vec<Tensor> {
        let leaves = inputs.each_ref().map(|x| x.to_kind(kind).set_requires_grad(true));
        let [q, k, v] = leaves.each_ref().map(|x| split_heads(x, 2));
        let result = join_heads(&attend(&q, &k, &v));
        // Something that is not symmetric.
        (&result * result.detach().cos()).sum(Kind::Float).backward();
        let all = leaves.iter().map(Tensor::grad).chain([result.detach()]);
        all.map(|x| x.to_kind(Kind::Float)).collect()
    }

    #[test]
    fn products_in_bf16_are_as_exact_as_flash_attention() {
        tch::manual_seed(7);
        let input = |length| Tensor::randn([8, length, 128], (Kind::Float, Device::Cpu));
        for (length, keys) in [(64, 64), (100, 77), (16, 77), (33, FEW_KEYS)] {
            let inputs = [input(length), input(keys), input(keys)].map(|x| x.to_kind(Kind::BFloat16));
            let flash = |q: &Tensor, k: &Tensor, v: &Tensor| {
                Tensor::scaled_dot_product_attention(q, k, v, None::<Tensor>, 0.0, false, None, false)
            };
            let exact = pass(&inputs, Kind::Float, flash);
            let errors = |found: Vec<Tensor>| -> Vec<f64> {
                let error =
                    |(a, b): (Tensor, &Tensor)| (a - b).norm().double_value(&[]) / b.norm().double_value(&[]);
                found.into_iter().zip(&exact).map(error).collect()
            };
            let products = errors(pass(&inputs, Kind::BFloat16, |q, k, v| attend(q, k, v, false)));
            let theirs = errors(pass(&inputs, Kind::BFloat16, flash));
            assert_ne!(products, theirs, "both took the same path");
            let close = products.iter().zip(&theirs).all(|(ours, theirs)| *ours < (1.5 * theirs).max(5e-3));
            assert!(close, "{length} x {keys}: {products:?}, flash attention {theirs:?}");
        }
    }
}
