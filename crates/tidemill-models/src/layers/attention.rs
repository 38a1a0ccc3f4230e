//! Scaled dot-product attention and multi-head attention, as the text encoder, the U-Net and the
//! VAE use them. Names follow diffusers' `models/attention.py`.

use tch::{Device, Kind, Tensor};
use tidemill_torch::{prefers_f32_products, without_cudnn_attention};

use super::linear::Linear;
use super::unwrap::unwrap_or_panic;
use crate::params::Scope;

/// The most keys for which [`attend_by_matmuls`] is faster than libtorch's flash attention on a
/// CPU.
const MAX_KEYS_FOR_MATMULS: i64 = 256;

/// softmax(q k^T / sqrt(d)) v by the fastest of libtorch's paths for the shape. `q`, `k`, `v`: [N,
/// heads, length, d].
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Tensor {
    if prefers_f32_products(q) {
        let [q, k, v] = [q, k, v].map(|tensor| tensor.to_kind(Kind::Float));
        return attend(&q, &k, &v, causal).to_kind(Kind::BFloat16);
    }
    // On a CPU flash attention computes many small products one after the other, and in bf16 the
    // setup of each takes longer than the product: with few keys both passes take two to three
    // times as long as two large products, with 1,024 keys as long.
    let keys = k.size()[2];
    let bf16_on_cpu = q.device() == Device::Cpu && q.kind() == Kind::BFloat16;
    if bf16_on_cpu && !causal && keys <= MAX_KEYS_FOR_MATMULS {
        return attend_by_matmuls(q, k, v);
    }
    let attend = || Tensor::scaled_dot_product_attention(q, k, v, None::<Tensor>, 0.0, causal, None, false);
    if q.device().is_cuda() && keys % 128 == 64 {
        // cuDNN 9.19's backward pass on Hopper processes keys by 128 and masks them by 64. With a
        // mask, a query whose scores are all far below zero gets a gradient of NaN
        // (pytorch/pytorch#196678).
        return unwrap_or_panic(without_cudnn_attention(attend));
    }
    attend()
}

/// Attention as two batched products with a softmax in between, whose result is kept for the
/// backward pass.
fn attend_by_matmuls(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let size = q.size();
    let (scale, options) = (1.0 / (size[3] as f64).sqrt(), (q.kind(), q.device()));
    let merge = |x: &Tensor| x.flatten(0, 1);
    let zero = Tensor::zeros([1, 1, 1], options);
    let scores = zero.baddbmm(&merge(q), &merge(k).transpose(1, 2), 0.0, scale);
    scores.softmax(-1, None).bmm(&merge(v)).view(size.as_slice())
}

/// [N, L, heads d] -> [N, heads, L, d].
pub fn split_heads(x: &Tensor, heads: i64) -> Tensor {
    let (n, length, width) = size_of_3d(x);
    x.reshape([n, length, heads, width / heads]).transpose(1, 2)
}

/// [N, heads, L, d] -> [N, L, heads d].
pub fn join_heads(x: &Tensor) -> Tensor {
    let size = x.size();
    x.transpose(1, 2).reshape([size[0], size[2], size[1] * size[3]])
}

fn size_of_3d(x: &Tensor) -> (i64, i64, i64) {
    let size = x.size();
    (size[0], size[1], size[2])
}

/// Multi-head attention of a sequence to itself or to another sequence.
#[derive(Debug)]
pub struct Attention {
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: Linear,
    heads: i64,
}

impl Attention {
    /// The U-Net's attention: without bias on q, k and v. `context_width`: width of the sequence
    /// that is attended to.
    pub fn new(scope: Scope, width: i64, context_width: i64, heads: i64) -> Self {
        Self {
            to_q: Linear::new_without_bias(scope.child("to_q"), width, width),
            to_k: Linear::new_without_bias(scope.child("to_k"), context_width, width),
            to_v: Linear::new_without_bias(scope.child("to_v"), context_width, width),
            to_out: Linear::new(scope.child("to_out").child(0), width, width),
            heads,
        }
    }

    /// The VAE's attention: one head, with bias everywhere.
    pub fn new_single_head(scope: Scope, width: i64) -> Self {
        Self {
            to_q: Linear::new(scope.child("to_q"), width, width),
            to_k: Linear::new(scope.child("to_k"), width, width),
            to_v: Linear::new(scope.child("to_v"), width, width),
            to_out: Linear::new(scope.child("to_out").child(0), width, width),
            heads: 1,
        }
    }

    /// `x`: [N, L, width]. `context`: the sequence that x attends to, [N, M, context width]; `None`
    /// for x itself. Returns [N, L, width].
    pub fn forward(&self, x: &Tensor, context: Option<&Tensor>) -> Tensor {
        let [q, k, v] = match context {
            None => Linear::forward_all(x, [&self.to_q, &self.to_k, &self.to_v]),
            Some(context) => [self.to_q.forward(x), self.to_k.forward(context), self.to_v.forward(context)],
        };
        let [q, k, v] = [q, k, v].map(|t| split_heads(&t, self.heads));
        self.to_out.forward(&join_heads(&attend(&q, &k, &v, false)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradients of query, key and value, and the result of attention: [8, L, 2 * 64] each.
    fn grads_and_result(
        inputs: &[Tensor; 3],
        kind: Kind,
        attend: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Vec<Tensor> {
        let leaves = inputs.each_ref().map(|x| x.to_kind(kind).set_requires_grad(true));
        let [q, k, v] = leaves.each_ref().map(|x| split_heads(x, 2));
        let result = join_heads(&attend(&q, &k, &v));
        // A loss that depends on each element in another way.
        (&result * result.detach().cos()).sum(Kind::Float).backward();
        let all = leaves.iter().map(Tensor::grad).chain([result.detach()]);
        all.map(|x| x.to_kind(Kind::Float)).collect()
    }

    #[test]
    fn matmul_attention_in_bf16_is_as_exact_as_flash_attention() {
        tch::manual_seed(7);
        let input = |length| Tensor::randn([8, length, 128], (Kind::Float, Device::Cpu));
        for (length, keys) in [(64, 64), (100, 77), (16, 77), (33, MAX_KEYS_FOR_MATMULS)] {
            let inputs = [input(length), input(keys), input(keys)].map(|x| x.to_kind(Kind::BFloat16));
            let flash = |q: &Tensor, k: &Tensor, v: &Tensor| {
                Tensor::scaled_dot_product_attention(q, k, v, None::<Tensor>, 0.0, false, None, false)
            };
            let exact = grads_and_result(&inputs, Kind::Float, flash);
            let errors = |found: Vec<Tensor>| -> Vec<f64> {
                let error =
                    |(a, b): (Tensor, &Tensor)| (a - b).norm().double_value(&[]) / b.norm().double_value(&[]);
                found.into_iter().zip(&exact).map(error).collect()
            };
            let ours = errors(grads_and_result(&inputs, Kind::BFloat16, |q, k, v| attend(q, k, v, false)));
            let theirs = errors(grads_and_result(&inputs, Kind::BFloat16, flash));
            assert_ne!(ours, theirs, "both took the same path");
            let close = ours.iter().zip(&theirs).all(|(our, their)| *our < (1.5 * their).max(5e-3));
            assert!(close, "{length} x {keys}: {ours:?}, flash attention {theirs:?}");
        }
    }
}
