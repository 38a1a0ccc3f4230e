//! 2-D convolutions.

use tch::Tensor;
use tidemill_torch::add_channel_bias;

use super::unwrap::unwrap_or_panic;
use crate::params::{Init, Scope};

/// A 2-D convolution on [N, C, H, W].
#[derive(Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Tensor,
    stride: i64,
    padding: i64,
}

impl Conv2d {
    pub fn new(scope: Scope, inputs: i64, outputs: i64, kernel: i64, stride: i64, padding: i64) -> Self {
        let init = Init::FanIn(inputs * kernel * kernel);
        let weight = scope.param("weight", &[outputs, inputs, kernel, kernel], init);
        let bias = scope.param("bias", &[outputs], init);
        Self { weight, bias, stride, padding }
    }

    /// A 3x3 convolution that keeps height and width.
    pub fn new_3x3(scope: Scope, inputs: i64, outputs: i64) -> Self {
        Self::new(scope, inputs, outputs, 3, 1, 1)
    }

    /// A 1x1 convolution.
    pub fn new_1x1(scope: Scope, inputs: i64, outputs: i64) -> Self {
        Self::new(scope, inputs, outputs, 1, 1, 0)
    }

    /// The convolution of x with its bias. On a GPU the bias is added by a kernel of ours, because
    /// libtorch adds it element by element.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match x.device().is_cuda() {
            true => unwrap_or_panic(add_channel_bias(&self.convolve(x, None), None, &self.bias)),
            false => self.convolve(x, Some(&self.bias)),
        }
    }

    /// [`Self::forward`] plus `image_bias` [N, C], which is added to all pixels. It is added to the
    /// bias first: on a GPU each sum over the image is a pass over memory.
    pub fn forward_with_image_bias(&self, x: &Tensor, image_bias: &Tensor) -> Tensor {
        let (mut output, bias) = (self.convolve(x, None), image_bias + &self.bias);
        if x.device().is_cuda() {
            return unwrap_or_panic(add_channel_bias(&output, None, &bias));
        }
        output += bias.unsqueeze(-1).unsqueeze(-1);
        output
    }

    /// [`Self::forward`] plus `residual`; on a GPU the bias is added in the same pass.
    pub fn forward_with_residual(&self, x: &Tensor, residual: &Tensor) -> Tensor {
        match x.device().is_cuda() {
            true => unwrap_or_panic(add_channel_bias(&self.convolve(x, None), Some(residual), &self.bias)),
            false => residual + self.forward(x),
        }
    }

    /// The sum of two convolutions' outputs; on a GPU both biases are added in the same pass.
    pub fn forward_sum([(first, x), (second, y)]: [(&Self, &Tensor); 2]) -> Tensor {
        if !x.device().is_cuda() {
            return first.forward(x) + second.forward(y);
        }
        let bias = &first.bias + &second.bias;
        unwrap_or_panic(add_channel_bias(&first.convolve(x, None), Some(&second.convolve(y, None)), &bias))
    }

    fn convolve(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        x.conv2d(&self.weight, bias, [self.stride; 2], [self.padding; 2], [1, 1], 1)
    }
}
