//! What the trainer and the samplers need of a network that predicts noise.

use tch::Tensor;

/// A network that predicts, from noisy latents, what its schedule's prediction type says (noise or
/// velocity). The U-Net of this crate is one; others can take its place.
pub trait Denoiser {
    /// `sample`: noisy latents [N, C, h, w]; `timesteps`: [N], i64; `text`: [N, L, D].
    /// Gives [N, C, h, w] in the dtype of `sample`.
    fn denoise(&self, sample: &Tensor, timesteps: &Tensor, text: &Tensor) -> Tensor;
}
