//! Layer normalisation (Ba et al., 2016) of a sum: a layer's output is added to the residual, and
//! the sum is normalised for the next layer.

use tch::Tensor;

use crate::Error;
use crate::kernels::{gpu, libtorch};

/// Returns x + `added` (x alone without `added`), and the layer norm of that over rows of W
/// elements. x and `added` are [..., W];
/// `weight` and `bias` `[W]`; both results have the dtype of x. On an NVIDIA GPU it is one pass over
/// memory in either direction, with arithmetic in f32. Elsewhere libtorch computes it in the dtype
/// of `weight`: on a CPU one pass was no faster.
///
/// # Errors
/// If shapes or dtypes do not fit each other, or memory does not suffice.
pub fn add_layer_norm(
    x: &Tensor,
    added: Option<&Tensor>,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor), Error> {
    gpu::add_layer_norm(x, added, weight, bias, eps)
        .unwrap_or_else(|| libtorch::add_layer_norm(x, added, weight, bias, eps))
}
