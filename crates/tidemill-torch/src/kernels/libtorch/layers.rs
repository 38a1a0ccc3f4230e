//! Layers by libtorch's operations, with libtorch's gradients.

use tch::Tensor;

use crate::kernels::arguments::GroupNorm;
use crate::{Error, guard};

/// Group normalisation in the dtype of the weights; the output has the dtype of x.
///
/// # Panics
/// Where tch would: run it in [`guard`](crate::guard()).
pub fn group_norm(norm: GroupNorm<'_>, x: &Tensor) -> Tensor {
    let GroupNorm { weight, bias, groups, eps, silu } = norm;
    let input = x.to_kind(weight.kind());
    let output = input.group_norm(groups, Some(weight), Some(bias), eps, true).to_kind(x.kind());
    if silu { output.silu() } else { output }
}

/// x + `added` (x alone without `added`), and the layer norm of that, computed in the dtype of
/// `weight`.
pub fn add_layer_norm(
    x: &Tensor,
    added: Option<&Tensor>,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor), Error> {
    guard(|| {
        let sum = added.map_or_else(|| x.shallow_clone(), |added| x + added);
        let input = sum.to_kind(weight.kind());
        let output = input.layer_norm(weight.size(), Some(weight), Some(bias), eps, true);
        (sum, output.to_kind(x.kind()))
    })
}

/// `a * gelu(b)` of x [..., 2 W], which holds a and then b in each row.
pub fn geglu(x: &Tensor) -> Result<Tensor, Error> {
    guard(|| {
        let halves = x.chunk(2, -1);
        &halves[0] * halves[1].gelu("none")
    })
}

/// `a` + `b` + `bias` of images [N, C, H, W]; `bias` is [C] or [N, C].
pub fn add_channel_bias(a: &Tensor, b: Option<&Tensor>, bias: &Tensor) -> Result<Tensor, Error> {
    guard(|| {
        let sum = a + bias.unsqueeze(-1).unsqueeze(-1);
        b.map_or_else(|| sum.shallow_clone(), |b| &sum + b)
    })
}
