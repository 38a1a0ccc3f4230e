//! CLIP's text transformer without a head, as [`super::ClipTextModel`] and
//! [`crate::clip::ClipModel`] have it.

use tch::{Kind, Tensor};

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
    eos_token_id: Option<i64>,
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
            eos_token_id: config.eos_token_id,
        }
    }

    /// Token ids [N, L] (i64) to the last hidden state [N, L, D], behind the final norm.
    pub fn forward(&self, ids: &Tensor) -> Tensor {
        self.finish(&self.forward_penultimate(ids))
    }

    /// Token ids [N, L] (i64) to the hidden state before the last layer [N, L, D].
    pub fn forward_penultimate(&self, ids: &Tensor) -> Tensor {
        let length = ids.size()[1];
        let embedded = Tensor::embedding(&self.token_embedding, ids, -1, false, false)
            + self.position_embedding.narrow(0, 0, length);
        let layers = &self.layers[..self.layers.len() - 1];
        layers.iter().fold(embedded, |x, layer| layer.forward(&x))
    }

    /// The hidden state before the last layer to the last hidden state, behind the final norm.
    pub fn finish(&self, penultimate: &Tensor) -> Tensor {
        let last = &self.layers[self.layers.len() - 1];
        self.final_layer_norm.forward(&last.forward(penultimate))
    }

    /// The last hidden states [N, L, D] at the ends of the texts: [N, D].
    pub fn pool(&self, states: &Tensor, ids: &Tensor) -> Tensor {
        let ends = match self.eos_token_id {
            Some(id) => ids.eq(id).to_kind(Kind::Int64).argmax(1, true),
            None => ids.argmax(1, true),
        };
        let ends = ends.unsqueeze(-1).expand([-1, 1, states.size()[2]], false);
        states.gather(1, &ends, false).squeeze_dim(1)
    }
}
