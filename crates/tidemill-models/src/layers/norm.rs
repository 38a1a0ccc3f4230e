//! Group norm, layer norm and RMS norm.

use tch::Tensor;

use super::unwrap::unwrap_or_panic;
use crate::params::Scope;

/// Group normalisation of [N, C, ...] over groups of channels.
#[derive(Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
    eps: f64,
}

impl GroupNorm {
    pub fn new(scope: Scope, groups: i64, channels: i64, eps: f64) -> Self {
        let (weight, bias) = scope.norm(channels);
        Self { weight, bias, groups, eps }
    }

    fn to_operation(&self, silu: bool) -> tidemill_torch::GroupNorm<'_> {
        let Self { weight, bias, groups, eps } = self;
        tidemill_torch::GroupNorm { weight, bias, groups: *groups, eps: *eps, silu }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        unwrap_or_panic(self.to_operation(false).forward(x))
    }

    /// The SiLU of [`Self::forward`].
    pub fn forward_silu(&self, x: &Tensor) -> Tensor {
        unwrap_or_panic(self.to_operation(true).forward(x))
    }

    /// x, to be used as the residual, and [`Self::forward`]. The gradients of both are added up in
    /// one pass.
    pub fn forward_with_residual(&self, x: &Tensor) -> (Tensor, Tensor) {
        unwrap_or_panic(self.to_operation(false).forward_with_residual(x))
    }

    /// [`Self::forward_with_residual`] with SiLU.
    pub fn forward_silu_with_residual(&self, x: &Tensor) -> (Tensor, Tensor) {
        unwrap_or_panic(self.to_operation(true).forward_with_residual(x))
    }
}

/// Layer normalisation of the last dimension.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    size: i64,
    eps: f64,
}

impl LayerNorm {
    pub fn new(scope: Scope, size: i64, eps: f64) -> Self {
        let (weight, bias) = scope.norm(size);
        Self { weight, bias, size, eps }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        // Computed in the dtype of the weight; `to_kind` copies nothing where x has that dtype.
        let input = x.to_kind(self.weight.kind());
        input.layer_norm([self.size], Some(&self.weight), Some(&self.bias), self.eps, true).to_kind(x.kind())
    }

    /// x + `added` (x alone without `added`), and the layer norm of that.
    pub fn forward_sum(&self, x: &Tensor, added: Option<&Tensor>) -> (Tensor, Tensor) {
        unwrap_or_panic(tidemill_torch::add_layer_norm(x, added, &self.weight, &self.bias, self.eps))
    }
}

/// Root mean square normalisation of the last dimension (Zhang & Sennrich, 2019), without bias.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    pub fn new(scope: Scope, size: i64, eps: f64) -> Self {
        Self { weight: scope.norm_weight(size), eps }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        // In the dtype of the weight, as libtorch's fused kernel needs it.
        let normed = x.to_kind(self.weight.kind()).rms_norm(self.weight.size(), Some(&self.weight), self.eps);
        normed.to_kind(x.kind())
    }
}
