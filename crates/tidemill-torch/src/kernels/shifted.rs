//! Sums of images and of what all pixels of a channel share.

use tch::Tensor;

use super::gpu;
use crate::{Error, guard};

/// `a` + `b` + `shift` of images [N, C, H, W], if there is a `b`, and a shift [C] or [N, C]: in one pass by a kernel for GPUs. On a CPU
/// convolutions have their bias without a pass of its own.
///
/// # Errors
/// If shapes do not go together, or memory does not suffice.
pub fn add_channel_bias(a: &Tensor, b: Option<&Tensor>, shift: &Tensor) -> Result<Tensor, Error> {
    gpu::add_channel_bias(a, b, shift).unwrap_or_else(|| by_libtorch(a, b, shift))
}

pub(super) fn by_libtorch(a: &Tensor, b: Option<&Tensor>, shift: &Tensor) -> Result<Tensor, Error> {
    guard(|| {
        let sum = a + shift.unsqueeze(-1).unsqueeze(-1);
        b.map_or_else(|| sum.shallow_clone(), |b| &sum + b)
    })
}
