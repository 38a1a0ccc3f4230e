//! Samples latents from the moments of the VAE's posterior. This is the one file in which training
//! scales latents.

use tch::Tensor;
use tidemill_models::LatentScale;

/// Scaled latents [N, C, h, w], f32. `stored` are moments [N, 2 C, h, w] (means, then
/// log-variances) if `posterior` has the normal numbers n to sample them with: mean + exp(logvar /
/// 2) n. The log-variance is clamped as in diffusers' `DiagonalGaussianDistribution`. Without
/// `posterior`, `stored` are latents, which are only scaled.
pub fn sample_latents(stored: &Tensor, posterior: Option<&Tensor>, scale: LatentScale) -> Tensor {
    let Some(posterior) = posterior else { return scale.scale(stored) };
    let channels = stored.size()[1] / 2;
    let (mean, log_variance) = (stored.narrow(1, 0, channels), stored.narrow(1, channels, channels));
    scale.scale(&(mean + (log_variance.clamp(-30.0, 20.0) * 0.5).exp() * posterior))
}
