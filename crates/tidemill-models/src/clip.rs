//! The text encoder of Stable Diffusion (transformers' CLIPTextModel): token ids to hidden states.

use crate::attention::{attend, join_heads, split_heads};
use crate::config::{self, Accepted};
use crate::layers::{Activation, LayerNorm, Linear};
use crate::params::{Init, ParamInit, Params, Scope};
use crate::{Error, weights};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// The keys of `text_encoder/config.json` that shape the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClipTextConfig {
    /// Number of token ids.
    pub vocab_size: i64,
    /// Width of the hidden states.
    pub hidden_size: i64,
    /// Width inside the MLP.
    pub intermediate_size: i64,
    /// Transformer layers.
    pub num_hidden_layers: i64,
    /// Attention heads per layer.
    pub num_attention_heads: i64,
    /// Longest caption, in tokens.
    pub max_position_embeddings: i64,
    /// The MLP's activation.
    pub hidden_act: Activation,
    /// Epsilon of every LayerNorm.
    pub layer_norm_eps: f64,
}

impl Default for ClipTextConfig {
    /// transformers' defaults.
    fn default() -> Self {
        Self {
            vocab_size: 49408,
            hidden_size: 512,
            intermediate_size: 2048,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            max_position_embeddings: 77,
            hidden_act: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
        }
    }
}

const ACCEPTED: Accepted = Accepted {
    class_names: &[],
    // Special ids only pool the sequence, which Stable Diffusion does not use; the initialiser's
    // settings, projection and the file's provenance do not touch the hidden states.
    ignored: &[
        "architectures",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "dtype",
        "torch_dtype",
        "initializer_factor",
        "initializer_range",
        "projection_dim",
        "transformers_version",
    ],
    fixed: &[
        ("model_type", &["\"clip_text_model\""]),
        ("attention_dropout", &["0.0"]),
        ("dropout", &["0.0"]),
    ],
};

impl ClipTextConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read: Self = config::read(path, &ACCEPTED)?;
        config::require_positive(
            path,
            &[
                ("vocab_size", read.vocab_size),
                ("hidden_size", read.hidden_size),
                ("intermediate_size", read.intermediate_size),
                ("num_hidden_layers", read.num_hidden_layers),
                ("num_attention_heads", read.num_attention_heads),
                ("max_position_embeddings", read.max_position_embeddings),
            ],
        )?;
        if read.hidden_size % read.num_attention_heads != 0 {
            return Err(Error::Unsupported {
                path: path.into(),
                key: "num_attention_heads".into(),
                value: read.num_attention_heads.to_string(),
                allowed: format!("it must divide hidden_size = {}", read.hidden_size),
            });
        }
        Ok(read)
    }

    /// Writes `config.json` as transformers reads it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let about = json!({"architectures": ["CLIPTextModel"], "model_type": "clip_text_model"});
        config::write(path, about, self)
    }
}

/// The text encoder.
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
    pub fn new(config: ClipTextConfig, device: Device, start: ParamInit) -> Self {
        let params = Params::new(device, start);
        // The names of every published Stable Diffusion folder; transformers 5 leaves `text_model.`
        // away, which `load_weights` allows for.
        let p = params.root().sub("text_model");
        let embeddings = p.sub("embeddings");
        let table = |name, rows| {
            let init = Init::Normal(0.02);
            embeddings.sub(name).param("weight", &[rows, config.hidden_size], init)
        };
        Self {
            token_embedding: table("token_embedding", config.vocab_size),
            position_embedding: table("position_embedding", config.max_position_embeddings),
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::new(p.sub("encoder").sub("layers").sub(i), &config))
                .collect(),
            final_layer_norm: LayerNorm::new(
                p.sub("final_layer_norm"),
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
        let model = tidemill_torch::guard(|| Self::new(config, device, ParamInit::Empty))?;
        weights::load_weights(&model.params, dir)?;
        model.params.set_kind(kind);
        Ok(model)
    }

    /// Writes a `text_encoder/` folder that transformers' `CLIPTextModel.from_pretrained` opens.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.config.write(&dir.join("config.json"))?;
        weights::save_weights(&self.params.named_parameters(), &dir.join(weights::TRANSFORMERS_FILE))
    }

    /// Token ids [N, L] (i64) to the last hidden state [N, L, D], final layer norm applied. Attention
    /// is causal and padding is not masked, as Stable Diffusion was trained.
    pub fn forward(&self, ids: &Tensor) -> Tensor {
        let length = ids.size()[1];
        let mut x = Tensor::embedding(&self.token_embedding, ids, -1, false, false)
            + self.position_embedding.narrow(0, 0, length);
        for layer in &self.layers {
            x = layer.forward(&x);
        }
        self.final_layer_norm.forward(&x)
    }

    /// Its configuration.
    pub fn config(&self) -> &ClipTextConfig {
        &self.config
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}

/// Pre-norm transformer layer.
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
    fn new(p: Scope, config: &ClipTextConfig) -> Self {
        let width = config.hidden_size;
        let attention = p.sub("self_attn");
        let mlp = p.sub("mlp");
        let map = |name| Linear::new(attention.sub(name), width, width);
        Self {
            norm1: LayerNorm::new(p.sub("layer_norm1"), width, config.layer_norm_eps),
            q: map("q_proj"),
            k: map("k_proj"),
            v: map("v_proj"),
            out: map("out_proj"),
            norm2: LayerNorm::new(p.sub("layer_norm2"), width, config.layer_norm_eps),
            fc1: Linear::new(mlp.sub("fc1"), width, config.intermediate_size),
            fc2: Linear::new(mlp.sub("fc2"), config.intermediate_size, width),
            heads: config.num_attention_heads,
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let h = self.norm1.forward(x);
        let head = |map: &Linear| split_heads(&map.forward(&h), self.heads);
        let attended = attend(&head(&self.q), &head(&self.k), &head(&self.v), true);
        let x = x + self.out.forward(&join_heads(&attended));
        let h = self.activation.forward(&self.fc1.forward(&self.norm2.forward(&x)));
        x + self.fc2.forward(&h)
    }
}
