//! Sums of images with a bias per channel.

use tch::Tensor;

use crate::Error;
use crate::kernels::{gpu, libtorch};

/// `a` + `b` + `bias` of images [N, C, H, W], or `a` + `bias` without a `b`; `bias` is `[C]` or [N,
/// C]. A kernel for GPUs does it in one pass. On a CPU convolutions add their bias without a pass
/// of its own.
///
/// # Errors
/// If shapes do not fit each other, or memory does not suffice.
pub fn add_channel_bias(a: &Tensor, b: Option<&Tensor>, bias: &Tensor) -> Result<Tensor, Error> {
    gpu::add_channel_bias(a, b, bias).unwrap_or_else(|| libtorch::add_channel_bias(a, b, bias))
}
