//! The rows of a micro-batch, as the stream gives them and on the device.

use tch::Tensor;

use super::sample_keys::SampleKeys;

/// The rows of one micro-batch, as the stream gives them.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    /// The keys that their random draws depend on.
    pub keys: SampleKeys<'a>,
    /// VAE latents, unscaled: f16, row-major.
    pub latents: &'a [u8],
    /// The shape of each row's latents: [2 C, h, w] for moments, else [C, h, w].
    pub latents_shape: [i64; 3],
    /// The columns of `TextConditions`: embeddings, f16, or with text encoders token ids, i32; row-major.
    pub text: Vec<&'a [u8]>,
    /// Sizes of image and crop, i32 [6], if there are any.
    pub time_ids: Option<&'a [u8]>,
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
    /// The columns of `TextConditions`: embeddings [N, L, D] and pooled text [N, P] in the network's dtype, or
    /// token ids [N, L], i64.
    pub text: Vec<Tensor>,
    /// Sizes of image and crop [N, 6], f32, if there are any.
    pub time_ids: Option<Tensor>,
    /// Whether each row's caption is dropped, for all text encoders together [N, 1], or for each [N, E], bool; `None`
    /// without caption dropout.
    pub dropped: Option<Tensor>,
}

impl MicroBatch {
    /// All its tensors, in a fixed order.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let Self { latents, posterior, noise, timesteps, text, time_ids, dropped } = self;
        let first = [latents, noise, timesteps].into_iter().chain(text);
        first.chain(time_ids).chain(posterior).chain(dropped)
    }
}
