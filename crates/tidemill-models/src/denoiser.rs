//! What the trainer and the samplers need of a network that predicts noise.

use std::collections::BTreeSet;

use serde_json::Value;
use tch::{Kind, Tensor};

use crate::{Error, Params};

/// A network that predicts, from noisy latents, what its schedule's prediction type says (noise or
/// velocity). The U-Net of this crate is one; others can take its place.
pub trait Denoiser {
    /// `sample`: noisy latents [N, C, h, w]; `timesteps`: [N], i64; `text`: [N, L, D].
    /// Gives [N, C, h, w] in the dtype of `sample`.
    fn denoise(&self, sample: &Tensor, timesteps: &Tensor, text: &Tensor) -> Tensor;
}

/// A row that a denoiser is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleShape {
    /// Latents [C, h, w].
    pub latents: [i64; 3],
    /// Text embeddings [L, D].
    pub text: [i64; 2],
}

/// A denoiser that can be trained.
pub trait TrainableDenoiser: Denoiser {
    /// Its parameters, f32 until they are trained.
    fn params(&self) -> &Params;

    /// Names of parameters that it wants to stay as they are.
    fn frozen_parameters(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Whether it had better have convolutions' weights channels-last when it is trained in this dtype: they are taken so without
    /// a copy where its images are.
    fn prefers_channels_last(&self, _kind: Kind) -> bool {
        false
    }

    /// What its checkpoints are checkpoints of: a kind of network, and what tells it from others of its kind.
    fn identity(&self) -> (&'static str, Value);

    /// Floating-point operations of a forward pass of one such row.
    ///
    /// # Errors
    /// Why it cannot take such a row.
    fn forward_flops(&self, row: SampleShape) -> Result<u64, Error>;

    /// Has its layers keep nothing but their inputs in a forward pass, and the backward pass compute the rest again
    /// (gradient checkpointing): less memory, and a forward pass more.
    ///
    /// # Errors
    /// If it cannot.
    fn set_gradient_checkpointing(&mut self, recompute: bool) -> Result<(), Error>;
}
