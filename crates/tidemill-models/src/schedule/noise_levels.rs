//! The noise levels of a batch: the network's inputs, what it should predict from them, and min-SNR loss weights.

use tch::Tensor;

use super::config::{NoiseProcess, PredictionType, SchedulerConfig};
use super::edm::EdmConfig;

/// The noise levels of N rows.
#[derive(Debug)]
pub struct NoiseLevels<'a> {
    config: &'a SchedulerConfig,
    /// [N], i64.
    timesteps: Tensor,
    /// Cumulative products of the alphas for diffusion, else sigma: [N], f32.
    values: Tensor,
}

impl<'a> NoiseLevels<'a> {
    pub(super) fn new(config: &'a SchedulerConfig, timesteps: Tensor, values: Tensor) -> Self {
        Self { config, timesteps, values }
    }

    /// The timesteps as the network takes them, `[N]`: i64 from 0, for rectified flow sigma T, f32, and for EDM a
    /// quarter of sigma's logarithm, f32.
    pub fn network_timesteps(&self) -> Tensor {
        match self.config.process() {
            NoiseProcess::Diffusion => self.timesteps.shallow_clone(),
            NoiseProcess::Flow => &self.values * self.config.num_train_timesteps,
            NoiseProcess::Edm(_) => self.values.log() * 0.25,
        }
    }

    /// The network's input, from `latents` and `noise` [N, C, h, w]: sqrt(a) `latents` + sqrt(1 - a) `noise`; for
    /// rectified flow (1 - sigma) `latents` + sigma `noise`; for EDM (`latents` + sigma `noise`) / sqrt(sigma^2 +
    /// sigma_data^2).
    pub fn add_noise(&self, latents: &Tensor, noise: &Tensor) -> Tensor {
        let values = self.values_for(latents);
        match self.config.process() {
            NoiseProcess::Diffusion => values.sqrt() * latents + one_minus(&values).sqrt() * noise,
            NoiseProcess::Flow => one_minus(&values) * latents + values * noise,
            NoiseProcess::Edm(edm) => (latents + &values * noise) / spread(edm, &values),
        }
    }

    /// What the network should predict from the result of [`Self::add_noise`]. For EDM it is the output that
    /// preconditioning turns into the latents: its plain squared error is the paper's weighted one of the latents.
    pub fn target(&self, latents: &Tensor, noise: &Tensor) -> Tensor {
        if let NoiseProcess::Edm(edm) = self.config.process() {
            let sigmas = self.values_for(latents);
            let target = &sigmas * latents / edm.sigma_data - noise * edm.sigma_data;
            return target / spread(edm, &sigmas) * self.config.edm_output_sign();
        }
        match self.config.prediction_type {
            PredictionType::Epsilon => noise.shallow_clone(),
            PredictionType::VPrediction => {
                let values = self.values_for(latents);
                values.sqrt() * noise - one_minus(&values).sqrt() * latents
            }
            PredictionType::FlowPrediction => noise - latents,
        }
    }

    /// Min-SNR loss weights `[N]`, f32, so that timesteps with little noise do not dominate the loss: min(SNR,
    /// `gamma`) times what an error of the predicted latents is for one of the prediction. With the
    /// signal-to-noise ratio SNR that is min(SNR, `gamma`) / SNR where the network predicts the noise, min(SNR,
    /// `gamma`) / (SNR + 1) for v, and min(SNR, `gamma`) sigma^2 for rectified flow (Hang et al., *Efficient
    /// Diffusion Training via Min-SNR Weighting Strategy*, 2023). For EDM it is min(SNR, `gamma`) sigma^2
    /// sigma_data^2 / (sigma^2 + sigma_data^2) with SNR = 1 / sigma^2. As in diffusers' training scripts, except
    /// that they divide 0 by 0 at a timestep without signal, and have no such weights for flows and EDM.
    pub fn min_snr_weights(&self, gamma: f64) -> Tensor {
        let values = &self.values;
        match self.config.process() {
            NoiseProcess::Diffusion => {
                // The absolute value, because rounding leaves -0 at the end of a schedule with zero
                // terminal SNR.
                let snr = (values / one_minus(values)).abs();
                match self.config.prediction_type {
                    PredictionType::VPrediction => snr.clamp_max(gamma) / (snr + 1.0),
                    _ => (gamma / snr).clamp_max(1.0),
                }
            }
            NoiseProcess::Flow => (one_minus(values) / values).square().clamp_max(gamma) * values.square(),
            NoiseProcess::Edm(edm) => {
                let squared = values.square();
                let error: Tensor = &squared * edm.sigma_data.powi(2) / (&squared + edm.sigma_data.powi(2));
                squared.reciprocal().clamp_max(gamma) * error
            }
        }
    }

    /// The values shaped to multiply `latents` [N, C, h, w], in their dtype.
    fn values_for(&self, latents: &Tensor) -> Tensor {
        self.values.to_kind(latents.kind()).reshape([-1, 1, 1, 1])
    }
}

fn one_minus(values: &Tensor) -> Tensor {
    1.0 - values
}

/// Standard deviation of noisy latents.
fn spread(edm: &EdmConfig, sigmas: &Tensor) -> Tensor {
    (sigmas.square() + edm.sigma_data.powi(2)).sqrt()
}
