//! What kernels assume about GPUs and about the tensors that they read.

use tch::{Device, Kind, Tensor};

use crate::{Error, guard};

/// Threads of a warp.
pub const WARP: usize = 32;
/// Multiprocessors of a Hopper GPU.
pub const MULTIPROCESSORS: usize = 132;

/// The GPU of a tensor that kernels may take; `None` for other devices and dtypes, and for empty
/// tensors.
pub fn supported_gpu(x: &Tensor) -> Option<usize> {
    match x.device() {
        Device::Cuda(device) if is_supported_kind(x.kind()) && x.numel() > 0 => Some(device),
        _ => None,
    }
}

/// Whether kernels take tensors of this dtype.
pub fn is_supported_kind(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::BFloat16)
}

/// Elements of a `Vector`: 16 bytes, the widest load of a thread.
pub fn vector_size(kind: Kind) -> usize {
    16 / kind.elt_size_in_bytes()
}

/// The tensor, contiguous and at an address that allows loads of 16 bytes; copied if it is not so.
pub fn to_aligned(tensor: &Tensor) -> Result<Tensor, Error> {
    guard(|| {
        let tensor = tensor.detach().contiguous();
        if (tensor.data_ptr() as usize).is_multiple_of(16) { tensor } else { tensor.copy() }
    })
}
