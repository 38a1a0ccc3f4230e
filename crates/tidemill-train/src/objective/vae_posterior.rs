//! Samples latents from the moments of the VAE's posterior. This is the one file in which training
//! multiplies latents by the VAE's scaling factor.

use tch::Tensor;

/// Scaled latents [N, C, h, w], f32. `stored` are moments [N, 2 C, h, w] (means, then
/// log-variances) if `posterior` has the normal numbers n to sample them with: (mean + exp(logvar /
/// 2) n) f. The log-variance is clamped as in diffusers' `DiagonalGaussianDistribution`. Without
/// `posterior`, `stored` are latents, which are only scaled.
pub fn sample_latents(stored: &Tensor, posterior: Option<&Tensor>, scaling_factor: f64) -> Tensor {
    let Some(posterior) = posterior else { return stored * scaling_factor };
    let channels = stored.size()[1] / 2;
    let (mean, log_variance) = (stored.narrow(1, 0, channels), stored.narrow(1, channels, channels));
    (mean + (log_variance.clamp(-30.0, 20.0) * 0.5).exp() * posterior) * scaling_factor
}
