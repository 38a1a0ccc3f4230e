//! Layer normalisation (Ba et al., 2016) of a sum: what a layer gives is added to what went past it, and normalised for the next one.

use tch::Tensor;

use super::gpu;
use crate::{Error, guard};

/// x + `added`, or x if nothing is, and the normalised rows of that, of W elements each: x and `added` [..., W]; `weight` and `bias` [W].
/// Both are in the dtype of x. On an NVIDIA GPU it is one pass over memory in either direction, with arithmetic in f32; elsewhere libtorch's
/// operations, in the dtype of `weight`: on a CPU one pass was no faster.
///
/// # Errors
/// If shapes or dtypes do not go together, or memory does not suffice.
pub fn add_layer_norm(
    x: &Tensor,
    added: Option<&Tensor>,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor), Error> {
    gpu::add_layer_norm(x, added, weight, bias, eps).unwrap_or_else(|| {
        guard(|| {
            let sum = added.map_or_else(|| x.shallow_clone(), |added| x + added);
            let input = sum.to_kind(weight.kind());
            let output = input.layer_norm(weight.size(), Some(weight), Some(bias), eps, true);
            (sum, output.to_kind(x.kind()))
        })
    })
}
