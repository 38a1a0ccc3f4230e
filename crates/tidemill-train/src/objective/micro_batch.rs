//! The rows of a micro-batch, as the stream gives them and on the device.

use tch::Tensor;

use super::sample_keys::SampleKeys;

/// The rows of one micro-batch, as the stream gives them.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The keys that their random draws depend on.
    pub keys: SampleKeys<'a>,
    /// VAE latents, unscaled: f16, row-major.
    pub latents: &'a [u8],
    /// The shape of each row's latents: [2 C, h, w] for moments, else [C, h, w].
    pub latents_shape: [i64; 3],
    /// Text embeddings, f16, or with a text encoder token ids, i32: row-major, each in the shape of
    /// `Objective::empty_text`.
    pub text: &'a [u8],
}

/// The rows of one micro-batch and their random draws, on the network's device. What is computed
/// from here on needs nothing from the host.
#[derive(Debug)]
pub struct MicroBatch {
    /// VAE latents, unscaled, f32: [N, 2 C, h, w] for moments, else [N, C, h, w].
    pub latents: Tensor,
    /// Standard normal numbers for sampling the posterior [N, C, h, w], f32; `None` if latents are
    /// not moments.
    pub posterior: Option<Tensor>,
    /// The noise [N, C, h, w], f32.
    pub noise: Tensor,
    /// The timesteps [N], i64.
    pub timesteps: Tensor,
    /// Text embeddings [N, L, D] in the network's dtype, or token ids [N, L], i64.
    pub text: Tensor,
    /// Whether each row's caption is dropped [N], bool; `None` without caption dropout.
    pub dropped: Option<Tensor>,
}

impl MicroBatch {
    /// All its tensors, in a fixed order.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let Self { latents, posterior, noise, timesteps, text, dropped } = self;
        [latents, noise, timesteps, text].into_iter().chain(posterior).chain(dropped)
    }
}
