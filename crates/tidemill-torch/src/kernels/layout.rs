//! Memory layouts of tensors, as kernels need them.

use tch::Tensor;

use crate::{Error, guard};

/// [N, C, H, W] as [N, H, W, C], contiguous. There is no copy if x lies channels-last.
pub fn nchw_to_nhwc(x: &Tensor) -> Tensor {
    x.permute([0, 2, 3, 1]).contiguous()
}

/// [N, H, W, C] as [N, C, H, W], a view.
pub fn nhwc_to_nchw(x: &Tensor) -> Tensor {
    x.permute([0, 3, 1, 2])
}

/// An uninitialised contiguous tensor with the shape, dtype and device of `x`.
pub fn empty_contiguous_like(x: &Tensor) -> Result<Tensor, Error> {
    guard(|| Tensor::empty(x.size(), (x.kind(), x.device())))
}
