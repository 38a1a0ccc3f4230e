//! Attention of image and text tokens to each other. Names follow diffusers' `JointAttnProcessor2_0`.

use tch::Tensor;

use super::config::{QkNorm, SD3TransformerConfig};
use crate::layers::{Linear, RmsNorm, attend, join_heads, split_heads};
use crate::params::Scope;

const EPS: f64 = 1e-6;

/// Queries, keys and values of one sequence.
#[derive(Debug)]
struct Projections {
    q: Linear,
    k: Linear,
    v: Linear,
    norm_q: Option<RmsNorm>,
    norm_k: Option<RmsNorm>,
    heads: i64,
}

impl Projections {
    /// The names are those of q, k, v and the norms of q and k.
    fn new(scope: &Scope, names: [&str; 5], config: &SD3TransformerConfig) -> Self {
        let [q, k, v, norm_q, norm_k] = names;
        let width = config.width();
        let linear = |name: &str| Linear::new(scope.child(name), width, width);
        let norm = |name: &str| {
            config
                .qk_norm
                .map(|QkNorm::RmsNorm| RmsNorm::new(scope.child(name), config.attention_head_dim, EPS))
        };
        Self {
            q: linear(q),
            k: linear(k),
            v: linear(v),
            norm_q: norm(norm_q),
            norm_k: norm(norm_k),
            heads: config.num_attention_heads,
        }
    }

    /// Tokens [N, L, width] to queries, keys and values [N, heads, L, d].
    fn forward(&self, x: &Tensor) -> [Tensor; 3] {
        let [q, k, v] = Linear::forward_all(x, [&self.q, &self.k, &self.v]);
        let [q, k, v] = [q, k, v].map(|t| split_heads(&t, self.heads));
        let normed = |norm: &Option<RmsNorm>, t: Tensor| match norm {
            Some(norm) => norm.forward(&t),
            None => t,
        };
        [normed(&self.norm_q, q), normed(&self.norm_k, k), v]
    }
}

/// Attention of image and text tokens to all of both.
#[derive(Debug)]
pub struct JointAttention {
    image: Projections,
    text: Projections,
    to_out: Linear,
    /// `None` where the text's result is not needed any more.
    to_add_out: Option<Linear>,
}

impl JointAttention {
    pub fn new(scope: Scope, config: &SD3TransformerConfig, returns_text: bool) -> Self {
        let width = config.width();
        let added = ["add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q", "norm_added_k"];
        Self {
            image: Projections::new(&scope, ["to_q", "to_k", "to_v", "norm_q", "norm_k"], config),
            text: Projections::new(&scope, added, config),
            to_out: Linear::new(scope.child("to_out").child(0), width, width),
            to_add_out: returns_text.then(|| Linear::new(scope.child("to_add_out"), width, width)),
        }
    }

    /// Image tokens [N, L, width] and text tokens [N, M, width] to what is added to each.
    pub fn forward(&self, image: &Tensor, text: &Tensor) -> (Tensor, Option<Tensor>) {
        let (of_image, of_text) = (self.image.forward(image), self.text.forward(text));
        let [q, k, v] = std::array::from_fn(|i| Tensor::cat(&[&of_image[i], &of_text[i]], 2));
        let attended = join_heads(&attend(&q, &k, &v, false));
        let (length, words) = (image.size()[1], text.size()[1]);
        let to_text = |linear: &Linear| linear.forward(&attended.narrow(1, length, words));
        (self.to_out.forward(&attended.narrow(1, 0, length)), self.to_add_out.as_ref().map(to_text))
    }
}

/// Attention of image tokens to each other alone.
#[derive(Debug)]
pub struct ImageAttention {
    image: Projections,
    to_out: Linear,
}

impl ImageAttention {
    pub fn new(scope: Scope, config: &SD3TransformerConfig) -> Self {
        let width = config.width();
        Self {
            image: Projections::new(&scope, ["to_q", "to_k", "to_v", "norm_q", "norm_k"], config),
            to_out: Linear::new(scope.child("to_out").child(0), width, width),
        }
    }

    /// [N, L, width] to [N, L, width].
    pub fn forward(&self, image: &Tensor) -> Tensor {
        let [q, k, v] = self.image.forward(image);
        self.to_out.forward(&join_heads(&attend(&q, &k, &v, false)))
    }
}
