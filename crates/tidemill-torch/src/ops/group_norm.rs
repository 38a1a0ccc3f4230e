//! Group normalisation (Wu and He, 2018), with or without SiLU.

use tch::Tensor;

use crate::guard::is_grad_enabled;
use crate::kernels::{GroupNorm, cpu, gpu, libtorch, nchw_to_nhwc, nhwc_to_nchw};
use crate::{Error, guard};

impl GroupNorm<'_> {
    /// The normalised x.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn forward(self, x: &Tensor) -> Result<Tensor, Error> {
        Ok(self.run(x, false)?.1)
    }

    /// x, to be used as the residual, and the normalised x. The gradient of x is the sum of both
    /// gradients; it is computed in the same pass over memory as that of the norm.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn forward_with_residual(self, x: &Tensor) -> Result<(Tensor, Tensor), Error> {
        self.run(x, true)
    }

    fn run(self, x: &Tensor, with_residual: bool) -> Result<(Tensor, Tensor), Error> {
        if let Some(outputs) = gpu::group_norm(self, x, with_residual) {
            return outputs;
        }
        if !cpu::is_supported(x) || !self.silu {
            return Ok((x.shallow_clone(), guard(|| libtorch::group_norm(self, x))?));
        }
        if x.dim() == 4 && !x.is_contiguous() && !is_grad_enabled() {
            let x_nhwc = guard(|| nchw_to_nhwc(x))?;
            let output = cpu::group_norm_silu_channels_last(self, &x_nhwc)?;
            return Ok((x.shallow_clone(), guard(|| nhwc_to_nchw(&output))?));
        }
        cpu::group_norm_silu(self, x, with_residual)
    }
}
