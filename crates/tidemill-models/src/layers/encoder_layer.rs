//! The transformer layer of CLIP's two towers.

use tch::Tensor;

use super::activation::Activation;
use super::attention::{attend, join_heads, split_heads};
use super::linear::Linear;
use super::norm::LayerNorm;
use crate::params::Scope;

/// The sizes of an [`EncoderLayer`].
#[derive(Clone, Copy, Debug)]
pub struct EncoderLayerConfig {
    /// Width of the hidden states.
    pub width: i64,
    /// Width inside the MLP.
    pub mlp_width: i64,
    /// Attention heads.
    pub heads: i64,
    /// The MLP's activation.
    pub activation: Activation,
    /// Epsilon of both norms.
    pub norm_eps: f64,
    /// Whether a position attends only to itself and those before it.
    pub causal: bool,
}

/// A transformer layer with its norms before attention and MLP (transformers' CLIPEncoderLayer).
#[derive(Debug)]
pub struct EncoderLayer {
    norm1: LayerNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    config: EncoderLayerConfig,
}

impl EncoderLayer {
    pub fn new(scope: Scope, config: EncoderLayerConfig) -> Self {
        let width = config.width;
        let attention = scope.child("self_attn");
        let mlp = scope.child("mlp");
        let projection = |name| Linear::new(attention.child(name), width, width);
        Self {
            norm1: LayerNorm::new(scope.child("layer_norm1"), width, config.norm_eps),
            q: projection("q_proj"),
            k: projection("k_proj"),
            v: projection("v_proj"),
            out: projection("out_proj"),
            norm2: LayerNorm::new(scope.child("layer_norm2"), width, config.norm_eps),
            fc1: Linear::new(mlp.child("fc1"), width, config.mlp_width),
            fc2: Linear::new(mlp.child("fc2"), config.mlp_width, width),
            config,
        }
    }

    /// [N, L, width] to [N, L, width].
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let h = self.norm1.forward(x);
        let heads = |projection: &Linear| split_heads(&projection.forward(&h), self.config.heads);
        let attended = attend(&heads(&self.q), &heads(&self.k), &heads(&self.v), self.config.causal);
        let x = x + self.out.forward(&join_heads(&attended));
        let h = self.config.activation.forward(&self.fc1.forward(&self.norm2.forward(&x)));
        x + self.fc2.forward(&h)
    }
}
