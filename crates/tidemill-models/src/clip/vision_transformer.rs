//! CLIP's vision transformer without its projection.

use tch::Tensor;

use super::config::ClipVisionConfig;
use crate::layers::{EncoderLayer, EncoderLayerConfig, LayerNorm, PatchEmbedding};
use crate::params::{Init, Scope};

/// Patches, layers and norms.
#[derive(Debug)]
pub struct VisionTransformer {
    class_embedding: Tensor,
    patch_embedding: PatchEmbedding,
    position_embedding: Tensor,
    pre_layer_norm: LayerNorm,
    layers: Vec<EncoderLayer>,
    post_layer_norm: LayerNorm,
}

impl VisionTransformer {
    pub fn new(scope: Scope, config: &ClipVisionConfig) -> Self {
        let (width, init) = (config.hidden_size, Init::Normal(0.02));
        let embeddings = scope.child("embeddings");
        let positions = (config.image_size / config.patch_size).pow(2) + 1;
        let norm = |name| LayerNorm::new(scope.child(name), width, config.layer_norm_eps);
        let layer = EncoderLayerConfig {
            width,
            mlp_width: config.intermediate_size,
            heads: config.num_attention_heads,
            activation: config.hidden_act,
            norm_eps: config.layer_norm_eps,
            causal: false,
        };
        Self {
            class_embedding: embeddings.param("class_embedding", &[width], init),
            patch_embedding: PatchEmbedding::new(
                embeddings.child("patch_embedding"),
                3,
                width,
                config.patch_size,
                false,
            ),
            position_embedding: embeddings.child("position_embedding").param(
                "weight",
                &[positions, width],
                init,
            ),
            // The name is misspelt in every published model.
            pre_layer_norm: norm("pre_layrnorm"),
            layers: (0..config.num_hidden_layers)
                .map(|i| EncoderLayer::new(scope.child("encoder").child("layers").child(i), layer))
                .collect(),
            post_layer_norm: norm("post_layernorm"),
        }
    }

    /// Images [N, 3, S, S] of the configured size to the state of the class token [N, D].
    pub fn forward(&self, images: &Tensor) -> Tensor {
        let patches = self.patch_embedding.forward(images);
        let size = patches.size();
        let class = self.class_embedding.expand([size[0], 1, size[2]], false);
        let x = Tensor::cat(&[class, patches], 1) + &self.position_embedding;
        let mut x = self.pre_layer_norm.forward(&x);
        for layer in &self.layers {
            x = layer.forward(&x);
        }
        self.post_layer_norm.forward(&x.select(1, 0))
    }
}
