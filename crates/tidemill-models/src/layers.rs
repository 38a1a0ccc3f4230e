//! The layers all networks are made of: convolution, linear map, the two norms, and activations.

use crate::params::{Init, Scope};
use serde::{Deserialize, Serialize};
use tch::Tensor;
use tidemill_torch::add_channel_bias;

/// A 2-D convolution on [N, C, H, W].
#[derive(Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Tensor,
    stride: i64,
    padding: i64,
}

impl Conv2d {
    pub fn new(p: Scope, inputs: i64, outputs: i64, kernel: i64, stride: i64, padding: i64) -> Self {
        let init = Init::FanIn(inputs * kernel * kernel);
        let weight = p.param("weight", &[outputs, inputs, kernel, kernel], init);
        let bias = p.param("bias", &[outputs], init);
        Self { weight, bias, stride, padding }
    }

    /// A 3x3 convolution that keeps the size.
    pub fn same(p: Scope, inputs: i64, outputs: i64) -> Self {
        Self::new(p, inputs, outputs, 3, 1, 1)
    }

    /// A 1x1 convolution.
    pub fn pointwise(p: Scope, inputs: i64, outputs: i64) -> Self {
        Self::new(p, inputs, outputs, 1, 1, 0)
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.convolve(x, Some(&self.bias))
    }

    /// [`Self::forward`] and, added to all pixels, `more` [N, C], in one sum with the bias: on a GPU each is a pass over memory.
    pub fn forward_adding(&self, x: &Tensor, more: &Tensor) -> Tensor {
        let (mut output, shift) = (self.convolve(x, None), more + &self.bias);
        if x.device().is_cuda() {
            return or_panic(add_channel_bias(&output, None, &shift));
        }
        output += shift.unsqueeze(-1).unsqueeze(-1);
        output
    }

    /// [`Self::forward`] and `onto`; on a GPU in one sum with the bias.
    pub fn forward_onto(&self, x: &Tensor, onto: &Tensor) -> Tensor {
        match x.device().is_cuda() {
            true => or_panic(add_channel_bias(&self.convolve(x, None), Some(onto), &self.bias)),
            false => onto + self.forward(x),
        }
    }

    /// [`Self::forward`] of two; on a GPU in one sum with both biases.
    pub fn sum_of([(one, x), (other, y)]: [(&Self, &Tensor); 2]) -> Tensor {
        if !x.device().is_cuda() {
            return one.forward(x) + other.forward(y);
        }
        let shift = &one.bias + &other.bias;
        or_panic(add_channel_bias(&one.convolve(x, None), Some(&other.convolve(y, None)), &shift))
    }

    fn convolve(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        x.conv2d(&self.weight, bias, [self.stride; 2], [self.padding; 2], [1, 1], 1)
    }
}

/// A linear map of the last dimension.
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    pub fn new(p: Scope, inputs: i64, outputs: i64) -> Self {
        let bias = p.param("bias", &[outputs], Init::FanIn(inputs));
        Self { bias: Some(bias), ..Self::without_bias(p, inputs, outputs) }
    }

    pub fn without_bias(p: Scope, inputs: i64, outputs: i64) -> Self {
        Self { weight: p.param("weight", &[outputs, inputs], Init::FanIn(inputs)), bias: None }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        or_panic(tidemill_torch::linear(x, &self.weight, self.bias.as_ref()))
    }

    /// [`Self::forward`] of each. On a GPU the gradients of x are added up as they are made, not in passes of their own.
    pub fn all_of<const N: usize>(x: &Tensor, maps: [&Self; N]) -> [Tensor; N] {
        if x.device().is_cuda() && maps.iter().all(|map| map.bias.is_none()) {
            return or_panic(tidemill_torch::linear_shared_input(x, maps.map(|map| &map.weight)));
        }
        maps.map(|map| map.forward(x))
    }

    /// GEGLU of [`Self::forward`]. On a GPU the bias goes there: its gradient is then added up where that of the product is made.
    pub fn forward_geglu(&self, x: &Tensor) -> Tensor {
        if !x.device().is_cuda() {
            return or_panic(tidemill_torch::geglu(&self.forward(x), None));
        }
        let product = or_panic(tidemill_torch::linear(x, &self.weight, None));
        or_panic(tidemill_torch::geglu(&product, self.bias.as_ref()))
    }
}

/// Group normalisation of [N, C, ...] over groups of channels.
#[derive(Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
    eps: f64,
}

impl GroupNorm {
    pub fn new(p: Scope, groups: i64, channels: i64, eps: f64) -> Self {
        let (weight, bias) = p.norm(channels);
        Self { weight, bias, groups, eps }
    }

    fn as_operation(&self, silu: bool) -> tidemill_torch::GroupNorm<'_> {
        let Self { weight, bias, groups, eps } = self;
        tidemill_torch::GroupNorm { weight, bias, groups: *groups, eps: *eps, silu }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        or_panic(self.as_operation(false).forward(x))
    }

    /// The SiLU of [`Self::forward`].
    pub fn forward_silu(&self, x: &Tensor) -> Tensor {
        or_panic(self.as_operation(true).forward(x))
    }

    /// x, to go past the norm with, and [`Self::forward`]: the gradients of both are added up in one pass.
    pub fn beside(&self, x: &Tensor) -> (Tensor, Tensor) {
        or_panic(self.as_operation(false).forward_with_residual(x))
    }

    /// [`Self::beside`] with SiLU.
    pub fn beside_silu(&self, x: &Tensor) -> (Tensor, Tensor) {
        or_panic(self.as_operation(true).forward_with_residual(x))
    }
}

/// What a kernel of ours has given.
///
/// # Panics
/// With why it could not, as tch's operators do: whoever runs a pass guards it.
#[expect(clippy::panic, reason = "as tch's operators do")]
pub fn or_panic<T>(result: Result<T, tidemill_torch::Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
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
    pub fn new(p: Scope, size: i64, eps: f64) -> Self {
        let (weight, bias) = p.norm(size);
        Self { weight, bias, size, eps }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        // In the dtype of the weight; where that is x's, these are no copies.
        let input = x.to_kind(self.weight.kind());
        input.layer_norm([self.size], Some(&self.weight), Some(&self.bias), self.eps, true).to_kind(x.kind())
    }

    /// x + `added`, or x if nothing is, and that normalised.
    pub fn of_sum(&self, x: &Tensor, added: Option<&Tensor>) -> (Tensor, Tensor) {
        or_panic(tidemill_torch::add_layer_norm(x, added, &self.weight, &self.bias, self.eps))
    }
}

/// The activations of CLIP's MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x * sigmoid(1.702 x), as OpenAI's CLIP (SD 1.x).
    QuickGelu,
    /// The exact GELU, as OpenCLIP (SD 2.x).
    Gelu,
}

impl Activation {
    pub fn forward(self, x: &Tensor) -> Tensor {
        match self {
            Self::QuickGelu => x * (x * 1.702).sigmoid(),
            Self::Gelu => x.gelu("none"),
        }
    }
}
