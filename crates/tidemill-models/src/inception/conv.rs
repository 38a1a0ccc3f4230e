//! Convolution, batch norm and ReLU.

use tch::{Kind, Tensor, no_grad};

use crate::params::{Init, Params, Scope};

/// Epsilon of every batch norm.
const EPS: f64 = 1e-3;

/// The geometry of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    pub inputs: i64,
    pub outputs: i64,
    /// Height and width.
    pub kernel: [i64; 2],
    pub stride: i64,
    pub padding: [i64; 2],
}

impl ConvShape {
    /// A convolution that keeps height and width.
    pub fn same(inputs: i64, outputs: i64, kernel: [i64; 2]) -> Self {
        Self { inputs, outputs, kernel, stride: 1, padding: kernel.map(|side| side / 2) }
    }

    /// A 3x3 convolution without padding.
    pub fn valid_3x3(inputs: i64, outputs: i64, stride: i64) -> Self {
        Self { inputs, outputs, kernel: [3, 3], stride, padding: [0, 0] }
    }
}

/// A convolution without bias, a batch norm in evaluation mode, and ReLU. After
/// [`fold_batch_norms`], the convolution's weight and the norm's bias are all that counts.
#[derive(Debug)]
pub struct ConvNormRelu {
    weight: Tensor,
    bias: Tensor,
    shape: ConvShape,
}

impl ConvNormRelu {
    pub fn new(scope: Scope, shape: ConvShape) -> Self {
        let ConvShape { inputs, outputs, kernel, .. } = shape;
        let init = Init::FanIn(inputs * kernel[0] * kernel[1]);
        let norm = scope.child("bn");
        let per_channel = |name, value| norm.param(name, &[outputs], Init::Const(value));
        for (name, value) in [("weight", 1.0), ("running_mean", 0.0), ("running_var", 1.0)] {
            let _ = per_channel(name, value);
        }
        let weight = scope.child("conv").param("weight", &[outputs, inputs, kernel[0], kernel[1]], init);
        Self { weight, bias: per_channel("bias", 0.0), shape }
    }

    /// [N, C, H, W] to [N, C', H', W'].
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let ConvShape { stride, padding, .. } = self.shape;
        x.conv2d(&self.weight, Some(&self.bias), [stride; 2], padding, [1, 1], 1).relu_()
    }
}

/// Multiplies each batch norm of `params` into the convolution before it, in double precision. It
/// must run once, after the weights are loaded.
pub fn fold_batch_norms(params: &Params) {
    let named: std::collections::HashMap<String, Tensor> = params.named_parameters().into_iter().collect();
    no_grad(|| {
        for (name, weight) in &named {
            let Some(layer) = name.strip_suffix(".conv.weight") else { continue };
            let norm = |part: &str| named[&format!("{layer}.bn.{part}")].to_kind(Kind::Double);
            let factor = norm("weight") / (norm("running_var") + EPS).sqrt();
            let bias = norm("bias") - norm("running_mean") * &factor;
            let folded = weight.to_kind(Kind::Double) * factor.reshape([-1, 1, 1, 1]);
            weight.shallow_clone().copy_(&folded);
            named[&format!("{layer}.bn.bias")].shallow_clone().copy_(&bias);
        }
    });
}
