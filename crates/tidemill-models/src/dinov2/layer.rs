//! DINOv2's transformer layer.

use tch::Tensor;

use super::config::Dinov2Config;
use crate::layers::{Activation, LayerNorm, Linear, attend, join_heads, split_heads};
use crate::params::{Init, Scope};

/// A transformer layer whose two residuals are scaled.
#[derive(Debug)]
pub struct Layer {
    norm1: LayerNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    scale1: Tensor,
    norm2: LayerNorm,
    mlp: Mlp,
    scale2: Tensor,
    heads: i64,
}

impl Layer {
    pub fn new(scope: Scope, config: &Dinov2Config) -> Self {
        let width = config.hidden_size;
        let attention = scope.child("attention");
        let projection = |name| Linear::new(attention.child("attention").child(name), width, width);
        let norm = |name| LayerNorm::new(scope.child(name), width, config.layer_norm_eps);
        let scale = |name| scope.child(name).param("lambda1", &[width], Init::Const(1.0));
        Self {
            norm1: norm("norm1"),
            q: projection("query"),
            k: projection("key"),
            v: projection("value"),
            out: Linear::new(attention.child("output").child("dense"), width, width),
            scale1: scale("layer_scale1"),
            norm2: norm("norm2"),
            mlp: Mlp::new(scope.child("mlp"), config),
            scale2: scale("layer_scale2"),
            heads: config.num_attention_heads,
        }
    }

    /// [N, L, width] to [N, L, width].
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let h = self.norm1.forward(x);
        let heads = |projection: &Linear| split_heads(&projection.forward(&h), self.heads);
        let attended = attend(&heads(&self.q), &heads(&self.k), &heads(&self.v), false);
        let x = x + self.out.forward(&join_heads(&attended)) * &self.scale1;
        let h = self.mlp.forward(&self.norm2.forward(&x));
        x + h * &self.scale2
    }
}

/// The layer's MLP.
#[derive(Debug)]
enum Mlp {
    /// Two linear layers with an activation between them.
    Plain { fc1: Linear, fc2: Linear, activation: Activation },
    /// SwiGLU (Shazeer, 2020).
    Gated { weights_in: Linear, weights_out: Linear },
}

impl Mlp {
    fn new(scope: Scope, config: &Dinov2Config) -> Self {
        let (width, inner) = (config.hidden_size, config.hidden_size * config.mlp_ratio);
        if !config.use_swiglu_ffn {
            let fc1 = Linear::new(scope.child("fc1"), width, inner);
            let fc2 = Linear::new(scope.child("fc2"), inner, width);
            return Self::Plain { fc1, fc2, activation: config.hidden_act };
        }
        // Two thirds, rounded up to a multiple of 8.
        let inner = (inner * 2 / 3 + 7) / 8 * 8;
        Self::Gated {
            weights_in: Linear::new(scope.child("weights_in"), width, 2 * inner),
            weights_out: Linear::new(scope.child("weights_out"), inner, width),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Self::Plain { fc1, fc2, activation } => fc2.forward(&activation.forward(&fc1.forward(x))),
            Self::Gated { weights_in, weights_out } => {
                let halves = weights_in.forward(x).chunk(2, -1);
                weights_out.forward(&(halves[0].silu() * &halves[1]))
            }
        }
    }
}
