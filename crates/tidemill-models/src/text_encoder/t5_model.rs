//! T5's encoder (transformers' T5EncoderModel): token ids to hidden states.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::t5_config::{FeedForwardProj, T5Config};
use crate::Error;
use crate::layers::{Linear, RmsNorm, join_heads, split_heads};
use crate::model_folder::weights;
use crate::params::{Init, ParamInit, Params, Scope};

/// T5's encoder.
#[derive(Debug)]
pub struct T5EncoderModel {
    config: T5Config,
    params: Params,
    embedding: Tensor,
    /// A bias for each class of distances and head.
    distance_bias: Tensor,
    layers: Vec<Layer>,
    final_norm: RmsNorm,
}

/// Self-attention and MLP, each behind a norm and with a residual.
#[derive(Debug)]
struct Layer {
    norm1: RmsNorm,
    attention: Attention,
    norm2: RmsNorm,
    mlp: Mlp,
}

#[derive(Debug)]
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    heads: i64,
}

#[derive(Debug)]
enum Mlp {
    Relu { wi: Linear, wo: Linear },
    GatedGelu { wi_0: Linear, wi_1: Linear, wo: Linear },
}

impl Attention {
    fn new(scope: Scope, config: &T5Config) -> Self {
        let (width, inner) = (config.d_model, config.num_heads * config.d_kv);
        let linear = |name, inputs, outputs| Linear::new_without_bias(scope.child(name), inputs, outputs);
        Self {
            q: linear("q", width, inner),
            k: linear("k", width, inner),
            v: linear("v", width, inner),
            o: linear("o", inner, width),
            heads: config.num_heads,
        }
    }

    /// T5 does not scale the products: its initialisation does.
    fn forward(&self, x: &Tensor, bias: &Tensor) -> Tensor {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|linear| split_heads(&linear.forward(x), self.heads));
        let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, Some(bias), 0.0, false, 1.0, false);
        self.o.forward(&join_heads(&attended))
    }
}

impl Mlp {
    fn new(scope: Scope, config: &T5Config) -> Self {
        let linear = |name, inputs, outputs| Linear::new_without_bias(scope.child(name), inputs, outputs);
        let (width, inner) = (config.d_model, config.d_ff);
        match config.feed_forward_proj {
            FeedForwardProj::Relu => {
                Self::Relu { wi: linear("wi", width, inner), wo: linear("wo", inner, width) }
            }
            FeedForwardProj::GatedGelu => Self::GatedGelu {
                wi_0: linear("wi_0", width, inner),
                wi_1: linear("wi_1", width, inner),
                wo: linear("wo", inner, width),
            },
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Self::Relu { wi, wo } => wo.forward(&wi.forward(x).relu()),
            Self::GatedGelu { wi_0, wi_1, wo } => {
                wo.forward(&(wi_0.forward(x).gelu("tanh") * wi_1.forward(x)))
            }
        }
    }
}

impl T5EncoderModel {
    /// An encoder on `device` in f32.
    pub fn new(config: T5Config, device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        let encoder = params.root().child("encoder");
        let norm =
            |scope: Scope| RmsNorm::new(scope.child("layer_norm"), config.d_model, config.layer_norm_epsilon);
        let layer = |i: i64| {
            let parts = encoder.child("block").child(i).child("layer");
            Layer {
                attention: Attention::new(parts.child(0).child("SelfAttention"), &config),
                norm1: norm(parts.child(0)),
                mlp: Mlp::new(parts.child(1).child("DenseReluDense"), &config),
                norm2: norm(parts.child(1)),
            }
        };
        let first = encoder.child("block").child(0).child("layer").child(0).child("SelfAttention");
        let bias = [config.relative_attention_num_buckets, config.num_heads];
        let embedding = [config.vocab_size, config.d_model];
        Self {
            embedding: params.root().child("shared").param("weight", &embedding, Init::Normal(1.0)),
            distance_bias: first.child("relative_attention_bias").param("weight", &bias, Init::Normal(0.02)),
            layers: (0..config.num_layers).map(layer).collect(),
            final_norm: RmsNorm::new(
                encoder.child("final_layer_norm"),
                config.d_model,
                config.layer_norm_epsilon,
            ),
            config,
            params,
        }
    }

    /// Opens a folder of T5; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self, Error> {
        let config = T5Config::read(&dir.join("config.json"))?;
        let build = || Self::new(config, device, ParamInit::Empty);
        weights::load_frozen(build, Self::params, dir, kind)
    }

    /// Encodes token ids [N, L] (i64) to the last hidden state [N, L, D], behind the final norm. Padding is not
    /// masked, as Stable Diffusion 3 was trained.
    pub fn forward(&self, ids: &Tensor) -> Tensor {
        let mut x = Tensor::embedding(&self.embedding, ids, -1, false, false);
        let bias = self.position_bias(ids.size()[1]);
        for Layer { norm1, attention, norm2, mlp } in &self.layers {
            x = &x + attention.forward(&norm1.forward(&x), &bias);
            x = &x + mlp.forward(&norm2.forward(&x));
        }
        self.final_norm.forward(&x)
    }

    /// What is added to the products of queries and keys: [1, heads, L, L].
    fn position_bias(&self, length: i64) -> Tensor {
        let positions = Tensor::arange(length, (Kind::Int64, self.params.device()));
        let distances = positions.unsqueeze(0) - positions.unsqueeze(1);
        let bias = Tensor::embedding(&self.distance_bias, &self.classify(&distances), -1, false, false);
        bias.permute([2, 0, 1]).unsqueeze(0).contiguous()
    }

    /// The class of each distance: exact for near tokens, logarithmic for others, apart for the two directions (Raffel
    /// et al., 2020, section 2.1). In f32, as transformers computes it.
    fn classify(&self, distances: &Tensor) -> Tensor {
        let half = self.config.relative_attention_num_buckets / 2;
        let exact = half / 2;
        let later = distances.gt(0).to_kind(Kind::Int64) * half;
        let distances = distances.abs();
        let range = (self.config.relative_attention_max_distance as f64 / exact as f64).ln();
        let logarithm = (distances.to_kind(Kind::Float) / exact as f64).log() / range;
        let far = (logarithm * (half - exact) as f64).to_kind(Kind::Int64) + exact;
        later + distances.where_self(&distances.lt(exact), &far.clamp_max(half - 1))
    }

    /// The configuration.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}
