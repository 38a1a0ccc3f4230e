//! CLIP's text transformer without a head, as [`super::ClipTextModel`] and
//! [`crate::clip::ClipModel`] have it.

use tch::Tensor;

use super::config::ClipTextConfig;
use crate::layers::{EncoderLayer, EncoderLayerConfig, LayerNorm};
use crate::params::{Init, Scope};

/// Embeddings, layers and the final norm.
#[derive(Debug)]
pub struct TextTransformer {
    token_embedding: Tensor,
    position_embedding: Tensor,
    layers: Vec<EncoderLayer>,
    final_layer_norm: LayerNorm,
}

impl TextTransformer {
    pub fn new(scope: Scope, config: &ClipTextConfig) -> Self {
        let width = config.hidden_size;
        let embeddings = scope.child("embeddings");
        let table = |name, rows| embeddings.child(name).param("weight", &[rows, width], Init::Normal(0.02));
        let layer = EncoderLayerConfig {
            width,
            mlp_width: config.intermediate_size,
            heads: config.num_attention_heads,
            activation: config.hidden_act,
            norm_eps: config.layer_norm_eps,
            causal: true,
        };
        Self {
            token_embedding: table("token_embedding", config.vocab_size),
            position_embedding: table("position_embedding", config.max_position_embeddings),
            layers: (0..config.num_hidden_layers)
                .map(|i| EncoderLayer::new(scope.child("encoder").child("layers").child(i), layer))
                .collect(),
            final_layer_norm: LayerNorm::new(scope.child("final_layer_norm"), width, config.layer_norm_eps),
        }
    }

    /// Token ids [N, L] (i64) to the last hidden state [N, L, D].
    pub fn forward(&self, ids: &Tensor) -> Tensor {
        let length = ids.size()[1];
        let mut x = Tensor::embedding(&self.token_embedding, ids, -1, false, false)
            + self.position_embedding.narrow(0, 0, length);
        for layer in &self.layers {
            x = layer.forward(&x);
        }
        self.final_layer_norm.forward(&x)
    }
}
