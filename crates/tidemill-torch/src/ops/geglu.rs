//! GEGLU (Shazeer, *GLU Variants Improve Transformer*, 2020) without its projection.

use tch::Tensor;

use crate::kernels::{cpu, gpu, libtorch};
use crate::{Error, guard};

/// `a * gelu(b)` of x [..., 2 W], which holds a and then b in each row: [..., W]. GELU is the exact
/// one. A bias [2 W] is added to x first; the kernels for GPUs do that in the same pass.
///
/// # Errors
/// If memory does not suffice.
pub fn geglu(x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    if let Some(output) = gpu::geglu(x, bias) {
        return output;
    }
    if let Some(bias) = bias {
        return geglu(&guard(|| x + bias)?, None);
    }
    if cpu::is_supported(x) { cpu::geglu(x) } else { libtorch::geglu(x) }
}
