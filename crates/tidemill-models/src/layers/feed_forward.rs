//! The MLP of transformer blocks. Names follow diffusers' `FeedForward`.

use std::sync::Arc;

use tch::Tensor;
use tidemill_torch::{CheckpointPass, gradient_checkpoint};

use super::linear::Linear;
use super::unwrap::unwrap_or_panic;
use crate::params::Scope;

/// What comes between the two linear layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForwardActivation {
    /// GEGLU (Shazeer, 2020), as in the U-Net.
    Geglu,
    /// GELU in its approximation by tanh, as in Stable Diffusion 3.
    GeluTanh,
}

/// Two linear layers with hidden states of four times the width between them.
#[derive(Debug)]
pub struct FeedForward {
    proj: Linear,
    out: Linear,
    activation: FeedForwardActivation,
}

impl FeedForward {
    #[expect(clippy::arc_with_non_send_sync, reason = "a backward pass uses it while its caller waits")]
    pub fn new(scope: Scope, width: i64, activation: FeedForwardActivation) -> Arc<Self> {
        let net = scope.child("net");
        let projected = match activation {
            // Hidden states and their gate.
            FeedForwardActivation::Geglu => 8 * width,
            FeedForwardActivation::GeluTanh => 4 * width,
        };
        Arc::new(Self {
            proj: Linear::new(net.child(0).child("proj"), width, projected),
            out: Linear::new(net.child(2), 4 * width, width),
            activation,
        })
    }

    /// x [..., width] to [..., width]. With `checkpoint` the backward pass computes the hidden states again, so that
    /// only x is kept. It does not compute the output again, which it does not need.
    pub fn forward(self: &Arc<Self>, x: &Tensor, checkpoint: bool) -> Tensor {
        if !checkpoint {
            return self.compute(x);
        }
        unwrap_or_panic(gradient_checkpoint(self, &[x], |ff, inputs, pass| match pass {
            CheckpointPass::Forward => ff.compute(&inputs[0]),
            CheckpointPass::Recompute => ff.out.forward_without_values(&ff.hidden_states(&inputs[0])),
        }))
    }

    fn compute(&self, x: &Tensor) -> Tensor {
        self.out.forward(&self.hidden_states(x))
    }

    fn hidden_states(&self, x: &Tensor) -> Tensor {
        match self.activation {
            FeedForwardActivation::Geglu => self.proj.forward_geglu(x),
            FeedForwardActivation::GeluTanh => self.proj.forward(x).gelu("tanh"),
        }
    }
}
