//! The memory format in which networks should get their images.

use tch::{Device, Kind, Tensor};

use crate::guard::is_grad_enabled;
use crate::kernels::{gpu, nchw_to_nhwc, nhwc_to_nchw};
use crate::{Error, guard};

/// `x` [N, C, H, W] in the memory format that is fastest for networks: channels-last on a GPU that
/// has kernels of this crate for group norms, and on a CPU where no gradients are wanted; unchanged
/// elsewhere. (With gradients, convolutions on a CPU gain less by channels-last than it takes to
/// make the gradients of their weights contiguous.)
///
/// # Errors
/// If memory does not suffice.
pub fn to_preferred_memory_format(x: &Tensor) -> Result<Tensor, Error> {
    let is_supported = matches!(x.kind(), Kind::Float | Kind::BFloat16);
    guard(|| match x.device() {
        Device::Cpu if is_supported && !is_grad_enabled() => nhwc_to_nchw(&nchw_to_nhwc(x)),
        device if prefers_channels_last(device, x.kind()) => nhwc_to_nchw(&nchw_to_nhwc(x)),
        _ => x.shallow_clone(),
    })
}

/// Whether [`to_preferred_memory_format`] makes images of this dtype channels-last where gradients
/// are wanted.
pub fn prefers_channels_last(device: Device, kind: Kind) -> bool {
    match device {
        Device::Cuda(device) => gpu::has_group_norm(device, kind),
        _ => false,
    }
}
