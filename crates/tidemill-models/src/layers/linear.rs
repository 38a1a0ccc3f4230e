//! Linear layers.

use tch::Tensor;

use super::unwrap::unwrap_or_panic;
use crate::params::{Init, Scope};

/// A linear layer on the last dimension.
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    pub fn new(scope: Scope, inputs: i64, outputs: i64) -> Self {
        let bias = scope.param("bias", &[outputs], Init::FanIn(inputs));
        Self { bias: Some(bias), ..Self::new_without_bias(scope, inputs, outputs) }
    }

    pub fn new_without_bias(scope: Scope, inputs: i64, outputs: i64) -> Self {
        Self { weight: scope.param("weight", &[outputs, inputs], Init::FanIn(inputs)), bias: None }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        unwrap_or_panic(tidemill_torch::linear(x, &self.weight, self.bias.as_ref()))
    }

    /// [`Self::forward`] for its autograd graph alone: the values of the result are undefined.
    pub fn forward_without_values(&self, x: &Tensor) -> Tensor {
        unwrap_or_panic(tidemill_torch::linear_without_values(x, &self.weight, self.bias.as_ref()))
    }

    /// [`Self::forward`] of each of several layers. On a GPU the gradients of x are added up as
    /// they are computed, without passes of their own.
    pub fn forward_all<const N: usize>(x: &Tensor, layers: [&Self; N]) -> [Tensor; N] {
        if x.device().is_cuda() && layers.iter().all(|layer| layer.bias.is_none()) {
            return unwrap_or_panic(tidemill_torch::linear_shared_input(
                x,
                layers.map(|layer| &layer.weight),
            ));
        }
        layers.map(|layer| layer.forward(x))
    }

    /// GEGLU of [`Self::forward`]. On a GPU the bias is added in the kernel of GEGLU, whose
    /// backward pass then computes its gradient as well.
    pub fn forward_geglu(&self, x: &Tensor) -> Tensor {
        if !x.device().is_cuda() {
            return unwrap_or_panic(tidemill_torch::geglu(&self.forward(x), None));
        }
        let product = unwrap_or_panic(tidemill_torch::linear(x, &self.weight, None));
        unwrap_or_panic(tidemill_torch::geglu(&product, self.bias.as_ref()))
    }
}
