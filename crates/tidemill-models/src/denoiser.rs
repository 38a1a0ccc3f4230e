//! What the trainer and the samplers need of a network that predicts noise.

use std::collections::BTreeSet;

use serde_json::Value;
use tch::{Kind, Tensor};

use crate::{Activations, Error, GradientCheckpointing, Params, ShardUnits};

/// A network that predicts noise or velocity from noisy latents, as the prediction type of its
/// schedule says. The U-Net of this crate is one; other networks can take its place.
pub trait Denoiser {
    /// `sample`: noisy latents [N, C, h, w]; `timesteps`: `[N]`, i64, or f32 for rectified flow and EDM. Returns
    /// [N, C, h, w] in the dtype of `sample`.
    fn denoise(&self, sample: &Tensor, timesteps: &Tensor, conditions: &Conditions) -> Tensor;

    /// Tokens of an image whose latents have this height and width: the patches of a transformer. A U-Net has as
    /// many as one with patches of 2 x 2. A [dynamic shift](crate::DynamicShift) follows from them.
    fn image_seq_len(&self, [height, width]: [i64; 2]) -> i64 {
        (height / 2) * (width / 2)
    }
}

/// What a denoiser predicts from, beside the noisy latents and their timesteps.
#[derive(Debug)]
pub struct Conditions {
    /// Text embeddings [N, L, D].
    pub text: Tensor,
    /// One vector for each caption, [N, P]: the pooled output of a text encoder (SDXL).
    pub pooled: Option<Tensor>,
    /// For each image its original height and width, the crop's top and left, and the target height and width,
    /// in pixels: [N, 6] (SDXL).
    pub time_ids: Option<Tensor>,
}

impl Conditions {
    /// Text embeddings alone, as Stable Diffusion 1.x and 2.x have.
    pub fn from_text(text: Tensor) -> Self {
        Self { text, pooled: None, time_ids: None }
    }

    /// Handles to the same tensors.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        self.map(Tensor::shallow_clone)
    }

    /// The result of `f` for each tensor.
    #[must_use]
    pub fn map(&self, f: impl Fn(&Tensor) -> Tensor) -> Self {
        let Self { text, pooled, time_ids } = self;
        Self { text: f(text), pooled: pooled.as_ref().map(&f), time_ids: time_ids.as_ref().map(&f) }
    }

    /// The rows of these conditions, and then those of `other`, which must have the same kinds.
    #[must_use]
    pub fn concat(&self, other: &Self) -> Self {
        let concat = |a: &Tensor, b: &Tensor| Tensor::cat(&[a, b], 0);
        let both = |a: &Option<Tensor>, b: &Option<Tensor>| Some(concat(a.as_ref()?, b.as_ref()?));
        Self {
            text: concat(&self.text, &other.text),
            pooled: both(&self.pooled, &other.pooled),
            time_ids: both(&self.time_ids, &other.time_ids),
        }
    }
}

/// The shapes of one sample's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleShape {
    /// Latents [C, h, w].
    pub latents: [i64; 3],
    /// Text embeddings [L, D].
    pub text: [i64; 2],
    /// Width of the pooled text, if there is one.
    pub pooled: Option<i64>,
    /// Whether there are [time ids](Conditions::time_ids).
    pub has_time_ids: bool,
}

/// A denoiser that can be trained.
pub trait TrainableDenoiser: Denoiser {
    /// The parameters, f32 until they are trained.
    fn params(&self) -> &Params;

    /// Names of parameters that the denoiser keeps frozen.
    fn frozen_parameters(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Whether weights of convolutions should be channels-last when the denoiser is trained in this
    /// dtype: where images are channels-last, convolutions read such weights without a copy.
    fn prefers_channels_last(&self, _kind: Kind) -> bool {
        false
    }

    /// Whether its forward pass may wait for the device, as `Tensor.item` does. Such a pass cannot be recorded
    /// as a CUDA graph.
    fn may_wait_for_device(&self) -> bool {
        false
    }

    /// The moments of a backward pass at which memory may be fullest; `None` if nobody knows.
    fn activations(&self, _shape: SampleShape) -> Option<Vec<Activations>> {
        None
    }

    /// The parts of the network whose weights may be whole on a rank only while they run.
    fn shard_units(&self) -> ShardUnits {
        ShardUnits::default()
    }

    /// Identifies the network in its checkpoints: its kind, and the configuration that tells it
    /// from others of its kind.
    fn identity(&self) -> (&'static str, Value);

    /// Floating-point operations of a forward pass of one sample.
    ///
    /// # Errors
    /// If it cannot take such a sample; the error says why.
    fn forward_flops(&self, shape: SampleShape) -> Result<u64, Error>;

    /// Sets what forward passes from now on do not keep, and the backward pass computes again. That takes less
    /// memory and more time.
    ///
    /// # Errors
    /// If the denoiser does not support it.
    fn set_gradient_checkpointing(&mut self, mode: GradientCheckpointing) -> Result<(), Error>;
}
