//! Adaptive layer norms: scales, shifts and gates that follow from the timestep and the pooled text (diffusers'
//! `AdaLayerNormZero` and its kin).

use tch::Tensor;

use crate::layers::Linear;
use crate::params::Scope;

const EPS: f64 = 1e-6;

/// Vectors for one sequence, computed from the embedding of timestep and pooled text.
#[derive(Debug)]
pub struct Modulation {
    linear: Linear,
    parts: i64,
}

impl Modulation {
    /// `parts` vectors of this width.
    pub fn new(scope: Scope, width: i64, parts: i64) -> Self {
        Self { linear: Linear::new(scope.child("linear"), width, parts * width), parts }
    }

    /// `time`: SiLU of the embedding [N, width]. Returns vectors [N, 1, width].
    pub fn forward(&self, time: &Tensor) -> Vec<Tensor> {
        self.linear.forward(time).unsqueeze(1).chunk(self.parts, -1)
    }
}

/// The layer norm of x [N, L, width], without weights, times (1 + scale), plus shift.
pub fn modulate(x: &Tensor, shift: &Tensor, scale: &Tensor) -> Tensor {
    scale_and_shift(&normalize(x), shift, scale)
}

/// Normalised x [N, L, width] times (1 + scale), plus shift.
pub fn scale_and_shift(x: &Tensor, shift: &Tensor, scale: &Tensor) -> Tensor {
    shift.addcmul(x, &(scale + 1.0))
}

/// The layer norm of x [N, L, width] without weights.
pub fn normalize(x: &Tensor) -> Tensor {
    let width = x.size()[2];
    x.layer_norm([width], None::<Tensor>, None::<Tensor>, EPS, true)
}
