//! The forward process of diffusion (Ho et al., 2020) or rectified flow (Liu et al., 2022): how much noise
//! latents have at each timestep, what the network should predict, and min-SNR loss weights. Computed in f32
//! and in diffusers' order of operations.

use tch::{Device, Kind, Tensor};

use super::config::{BetaSchedule, PredictionType, SchedulerConfig};

/// A noise schedule over T timesteps, from little noise to much.
#[derive(Debug)]
pub struct NoiseSchedule {
    config: SchedulerConfig,
    levels: NoiseLevels,
}

/// How much noise there is at each timestep: `[T]`, f32.
#[derive(Debug)]
enum NoiseLevels {
    /// Cumulative products of the alphas: noisy latents are sqrt(a) latents + sqrt(1 - a) noise.
    Diffusion { alphas_cumprod: Tensor },
    /// Noisy latents are (1 - sigma) latents + sigma noise.
    Flow { sigmas: Tensor },
}

impl NoiseSchedule {
    /// Computes the schedule on `device`.
    pub fn new(config: SchedulerConfig, device: Device) -> Self {
        let levels = if config.is_flow() {
            NoiseLevels::Flow { sigmas: flow_sigmas(&config).to_device(device) }
        } else {
            NoiseLevels::Diffusion { alphas_cumprod: alphas_cumprod(&config).to_device(device) }
        };
        Self { config, levels }
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Cumulative products of the alphas, `[T]`, f32; `None` for rectified flow.
    pub fn alphas_cumprod(&self) -> Option<&Tensor> {
        match &self.levels {
            NoiseLevels::Diffusion { alphas_cumprod } => Some(alphas_cumprod),
            NoiseLevels::Flow { .. } => None,
        }
    }

    /// `timesteps` [N], i64, from 0, as the network takes them: the same, or for rectified flow sigma T, f32.
    pub fn network_timesteps(&self, timesteps: &Tensor) -> Tensor {
        match &self.levels {
            NoiseLevels::Diffusion { .. } => timesteps.shallow_clone(),
            NoiseLevels::Flow { sigmas } => {
                sigmas.index_select(0, timesteps) * self.config.num_train_timesteps
            }
        }
    }

    /// The factors of latents and noise at `timesteps` [N], shaped to multiply [N, C, h, w], in `kind`.
    fn coefficients(&self, timesteps: &Tensor, kind: Kind) -> (Tensor, Tensor) {
        let at = |table: &Tensor| table.to_kind(kind).index_select(0, timesteps).reshape([-1, 1, 1, 1]);
        match &self.levels {
            NoiseLevels::Diffusion { alphas_cumprod } => {
                let a = at(alphas_cumprod);
                let one_minus_a: Tensor = 1.0 - &a;
                (a.sqrt(), one_minus_a.sqrt())
            }
            NoiseLevels::Flow { sigmas } => {
                let sigma = at(sigmas);
                (1.0 - &sigma, sigma)
            }
        }
    }

    /// Noisy latents: sqrt(a) `latents` + sqrt(1 - a) `noise`, or for rectified flow (1 - sigma) `latents` +
    /// sigma `noise`.
    pub fn add_noise(&self, latents: &Tensor, noise: &Tensor, timesteps: &Tensor) -> Tensor {
        let (signal, sigma) = self.coefficients(timesteps, latents.kind());
        signal * latents + sigma * noise
    }

    /// Min-SNR loss weights of all timesteps, `[T]`, f32, so that timesteps with little noise do not
    /// dominate the loss: min(SNR, `gamma`) times what an error of the predicted latents is for one of the
    /// prediction. With the signal-to-noise ratio SNR that is min(SNR, `gamma`) / SNR where the network
    /// predicts the noise, min(SNR, `gamma`) / (SNR + 1) for v, and min(SNR, `gamma`) sigma^2 for rectified
    /// flow (Hang et al., *Efficient Diffusion Training via Min-SNR Weighting Strategy*, 2023). As in
    /// diffusers' training scripts, except that they divide 0 by 0 at a timestep without signal, and have no
    /// such weights for flows.
    pub fn min_snr_weights(&self, gamma: f64) -> Tensor {
        match &self.levels {
            NoiseLevels::Diffusion { alphas_cumprod } => {
                let one_minus_a: Tensor = 1.0 - alphas_cumprod;
                // The absolute value, because rounding leaves -0 at the end of a schedule with zero
                // terminal SNR.
                let snr = (alphas_cumprod / one_minus_a).abs();
                match self.config.prediction_type {
                    PredictionType::VPrediction => snr.clamp_max(gamma) / (snr + 1.0),
                    _ => (gamma / snr).clamp_max(1.0),
                }
            }
            NoiseLevels::Flow { sigmas } => {
                let signal: Tensor = 1.0 - sigmas;
                (signal / sigmas).square().clamp_max(gamma) * sigmas.square()
            }
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
            PredictionType::FlowPrediction => noise - latents,
        }
    }
}

/// Cumulative products of the alphas, `[T]`, f32.
fn alphas_cumprod(config: &SchedulerConfig) -> Tensor {
    let (n, options) = (config.num_train_timesteps, (Kind::Float, Device::Cpu));
    let betas = match config.beta_schedule {
        BetaSchedule::Linear => Tensor::linspace(config.beta_start, config.beta_end, n, options),
        BetaSchedule::ScaledLinear => {
            Tensor::linspace(config.beta_start.sqrt(), config.beta_end.sqrt(), n, options).square()
        }
    };
    let betas = if config.rescale_betas_zero_snr { rescale_to_zero_terminal_snr(&betas) } else { betas };
    let alphas: Tensor = 1.0 - betas;
    alphas.cumprod(0, Kind::Float)
}

/// sigma of rectified flow, `[T]`, f32: 1 / T to 1, shifted.
fn flow_sigmas(config: &SchedulerConfig) -> Tensor {
    let (n, shift) = (config.num_train_timesteps, config.flow_shift);
    let sigmas = Tensor::linspace(1, n, n, (Kind::Float, Device::Cpu)) / n;
    let divisor: Tensor = &sigmas * (shift - 1.0) + 1.0;
    sigmas * shift / divisor
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
