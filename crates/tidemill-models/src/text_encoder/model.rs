//! The text encoder of Stable Diffusion (transformers' CLIPTextModel): token ids to hidden states.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::config::ClipTextConfig;
use crate::Error;
use crate::layers::{Activation, LayerNorm, Linear, attend, join_heads, split_heads};
use crate::model_folder::weight_files::TRANSFORMERS_FILE;
use crate::model_folder::weights;
use crate::params::{Init, ParamInit, Params, Scope};

/// Stable Diffusion's text encoder.
#[derive(Debug)]
pub struct ClipTextModel {
    config: ClipTextConfig,
    params: Params,
    token_embedding: Tensor,
    position_embedding: Tensor,
    layers: Vec<Layer>,
    final_layer_norm: LayerNorm,
}

impl ClipTextModel {
    /// A text encoder on `device` in f32.
    pub fn new(config: ClipTextConfig, device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        // The names in all published Stable Diffusion folders. transformers 5 omits `text_model.`;
        // `load_weights` accepts both.
        let scope = params.root().child("text_model");
        let embeddings = scope.child("embeddings");
        let table = |name, rows| {
            let init = Init::Normal(0.02);
            embeddings.child(name).param("weight", &[rows, config.hidden_size], init)
        };
        Self {
            token_embedding: table("token_embedding", config.vocab_size),
            position_embedding: table("position_embedding", config.max_position_embeddings),
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::new(scope.child("encoder").child("layers").child(i), &config))
                .collect(),
            final_layer_norm: LayerNorm::new(
                scope.child("final_layer_norm"),
                config.hidden_size,
                config.layer_norm_eps,
            ),
            config,
            params,
        }
    }

    /// Opens a `text_encoder/` folder; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self, Error> {
        let config = ClipTextConfig::read(&dir.join("config.json"))?;
        let build = || Self::new(config, device, ParamInit::Empty);
        weights::load_frozen(build, Self::params, dir, kind)
    }

    /// Writes a `text_encoder/` folder that transformers' `CLIPTextModel.from_pretrained` opens.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.config.write(&dir.join("config.json"))?;
        weights::save_weights(&self.params.named_parameters(), &dir.join(TRANSFORMERS_FILE))
    }

    /// Encodes token ids [N, L] (i64) to the last hidden state [N, L, D], behind the final layer
    /// norm. Attention is causal and padding is not masked, as Stable Diffusion was trained.
    pub fn forward(&self, ids: &Tensor) -> Tensor {
        let length = ids.size()[1];
        let mut x = Tensor::embedding(&self.token_embedding, ids, -1, false, false)
            + self.position_embedding.narrow(0, 0, length);
        for layer in &self.layers {
            x = layer.forward(&x);
        }
        self.final_layer_norm.forward(&x)
    }

    /// The configuration.
    pub fn config(&self) -> &ClipTextConfig {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}

/// A transformer layer with its norms before attention and MLP.
#[derive(Debug)]
struct Layer {
    norm1: LayerNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    heads: i64,
    activation: Activation,
}

impl Layer {
    fn new(scope: Scope, config: &ClipTextConfig) -> Self {
        let width = config.hidden_size;
        let attention = scope.child("self_attn");
        let mlp = scope.child("mlp");
        let projection = |name| Linear::new(attention.child(name), width, width);
        Self {
            norm1: LayerNorm::new(scope.child("layer_norm1"), width, config.layer_norm_eps),
            q: projection("q_proj"),
            k: projection("k_proj"),
            v: projection("v_proj"),
            out: projection("out_proj"),
            norm2: LayerNorm::new(scope.child("layer_norm2"), width, config.layer_norm_eps),
            fc1: Linear::new(mlp.child("fc1"), width, config.intermediate_size),
            fc2: Linear::new(mlp.child("fc2"), config.intermediate_size, width),
            heads: config.num_attention_heads,
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let h = self.norm1.forward(x);
        let heads = |projection: &Linear| split_heads(&projection.forward(&h), self.heads);
        let attended = attend(&heads(&self.q), &heads(&self.k), &heads(&self.v), true);
        let x = x + self.out.forward(&join_heads(&attended));
        let h = self.activation.forward(&self.fc1.forward(&self.norm2.forward(&x)));
        x + self.fc2.forward(&h)
    }
}
