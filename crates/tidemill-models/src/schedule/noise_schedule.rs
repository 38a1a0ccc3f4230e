//! The forward process of diffusion (Ho et al., 2020): how much noise latents have at each
//! timestep, what the network should predict, and min-SNR loss weights. Computed in f32 and in
//! diffusers' order of operations.

use tch::{Device, Kind, Tensor};

use super::config::{BetaSchedule, PredictionType, SchedulerConfig};

/// A noise schedule: cumulative products of the alphas, f32.
#[derive(Debug)]
pub struct NoiseSchedule {
    config: SchedulerConfig,
    alphas_cumprod: Tensor,
}

impl NoiseSchedule {
    /// Computes the schedule on `device`.
    pub fn new(config: SchedulerConfig, device: Device) -> Self {
        let n = config.num_train_timesteps;
        let options = (Kind::Float, Device::Cpu);
        let betas = match config.beta_schedule {
            BetaSchedule::Linear => Tensor::linspace(config.beta_start, config.beta_end, n, options),
            BetaSchedule::ScaledLinear => {
                Tensor::linspace(config.beta_start.sqrt(), config.beta_end.sqrt(), n, options).square()
            }
        };
        let betas = if config.rescale_betas_zero_snr { rescale_to_zero_terminal_snr(&betas) } else { betas };
        let alphas: Tensor = 1.0 - betas;
        let alphas_cumprod = alphas.cumprod(0, Kind::Float).to_device(device);
        Self { config, alphas_cumprod }
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Cumulative products of the alphas, `[T]`, f32.
    pub fn alphas_cumprod(&self) -> &Tensor {
        &self.alphas_cumprod
    }

    /// sqrt(a) and sqrt(1 - a) at `timesteps` [N], shaped to multiply [N, C, h, w], in `kind`.
    fn coefficients(&self, timesteps: &Tensor, kind: Kind) -> (Tensor, Tensor) {
        let a = self.alphas_cumprod.to_kind(kind).index_select(0, timesteps);
        let per_image = |t: Tensor| t.reshape([-1, 1, 1, 1]);
        let one_minus_a: Tensor = 1.0 - &a;
        (per_image(a.sqrt()), per_image(one_minus_a.sqrt()))
    }

    /// Noisy latents: sqrt(a) `latents` + sqrt(1 - a) `noise`.
    pub fn add_noise(&self, latents: &Tensor, noise: &Tensor, timesteps: &Tensor) -> Tensor {
        let (signal, sigma) = self.coefficients(timesteps, latents.kind());
        signal * latents + sigma * noise
    }

    /// Min-SNR loss weights of all timesteps, `[T]`, f32, so that timesteps with little noise do not
    /// dominate the loss: min(SNR, `gamma`) / SNR where the network predicts the noise, and
    /// min(SNR, `gamma`) / (SNR + 1) where it predicts v, with the signal-to-noise ratio SNR = a /
    /// (1 - a) (Hang et al., *Efficient Diffusion Training via Min-SNR Weighting Strategy*, 2023).
    /// As in diffusers' training scripts, except that they divide 0 by 0 at a timestep without
    /// signal.
    pub fn min_snr_weights(&self, gamma: f64) -> Tensor {
        let one_minus_a: Tensor = 1.0 - &self.alphas_cumprod;
        // The absolute value, because rounding leaves -0 at the end of a schedule with zero
        // terminal SNR.
        let snr = (&self.alphas_cumprod / one_minus_a).abs();
        match self.config.prediction_type {
            PredictionType::Epsilon => (gamma / snr).clamp_max(1.0),
            PredictionType::VPrediction => snr.clamp_max(gamma) / (snr + 1.0),
        }
    }

    /// The training target: what the network should predict from the result of [`Self::add_noise`].
    pub fn target(&self, latents: &Tensor, noise: &Tensor, timesteps: &Tensor) -> Tensor {
        match self.config.prediction_type {
            PredictionType::Epsilon => noise.shallow_clone(),
            PredictionType::VPrediction => {
                let (signal, sigma) = self.coefficients(timesteps, latents.kind());
                signal * noise - sigma * latents
            }
        }
    }
}

/// Betas of a schedule with zero terminal SNR: shifts and scales sqrt(alphas_cumprod) so that the
/// last one becomes zero and the first one keeps its value (Lin et al., 2023, algorithm 1;
/// diffusers' `rescale_zero_terminal_snr`).
fn rescale_to_zero_terminal_snr(betas: &Tensor) -> Tensor {
    let alphas: Tensor = 1.0 - betas;
    let root = alphas.cumprod(0, Kind::Float).sqrt();
    let (first, last) = (root.get(0), root.get(-1));
    let root = (root - &last) * (&first / (&first - &last));
    let bar = root.square();
    let n = bar.size()[0];
    let ratios = bar.narrow(0, 1, n - 1) / bar.narrow(0, 0, n - 1);
    1.0 - Tensor::cat(&[bar.narrow(0, 0, 1), ratios], 0)
}
