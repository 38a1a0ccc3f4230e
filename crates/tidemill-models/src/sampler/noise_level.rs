//! A noise level, and what a network's output says about latents and noise there.

use tch::Tensor;

use crate::schedule::{EdmConfig, NoiseProcess, PredictionType, SchedulerConfig};

/// A noise level: the noisy sample is alpha latents + sigma noise.
#[derive(Clone, Copy, Debug)]
pub struct NoiseLevel {
    pub alpha: f64,
    pub sigma: f64,
}

impl NoiseLevel {
    /// A level of rectified flow.
    pub fn flow(sigma: f32) -> Self {
        Self { alpha: f64::from(1.0 - sigma), sigma: f64::from(sigma) }
    }

    /// Half the logarithm of the signal-to-noise ratio.
    pub fn lambda(self) -> f64 {
        self.alpha.ln() - self.sigma.ln()
    }
}

/// What a network's output means.
#[derive(Clone, Copy, Debug)]
pub enum Prediction {
    Plain(PredictionType),
    /// Preconditioned, with the sign of the output.
    Edm {
        edm: EdmConfig,
        sign: f64,
    },
}

impl Prediction {
    pub fn new(config: &SchedulerConfig) -> Self {
        match config.process() {
            NoiseProcess::Edm(edm) => Self::Edm { edm: *edm, sign: config.edm_output_sign() },
            NoiseProcess::Diffusion | NoiseProcess::Flow => Self::Plain(config.prediction_type),
        }
    }

    /// The latents that the network's `output` for `sample` at this level implies.
    pub fn latents(self, level: NoiseLevel, output: &Tensor, sample: &Tensor) -> Tensor {
        let NoiseLevel { alpha, sigma } = level;
        match self {
            Self::Plain(PredictionType::Epsilon) => (sample - output * sigma) / alpha,
            Self::Plain(PredictionType::VPrediction) => sample * alpha - output * sigma,
            Self::Plain(PredictionType::FlowPrediction) => sample - output * sigma,
            Self::Edm { edm, sign } => {
                let variance = sigma.powi(2) + edm.sigma_data.powi(2);
                let c_out = sign * sigma * edm.sigma_data / variance.sqrt();
                sample * (edm.sigma_data.powi(2) / variance) + output * c_out
            }
        }
    }

    /// The noise that the network's `output` for `sample` at this level implies, whose [`latents`](Self::latents)
    /// are known.
    pub fn noise(self, level: NoiseLevel, output: &Tensor, sample: &Tensor, latents: &Tensor) -> Tensor {
        let NoiseLevel { alpha, sigma } = level;
        match self {
            Self::Plain(PredictionType::Epsilon) => output.shallow_clone(),
            Self::Plain(PredictionType::VPrediction) => output * alpha + sample * sigma,
            Self::Plain(PredictionType::FlowPrediction) => sample + output * alpha,
            Self::Edm { .. } => (sample - latents) / sigma,
        }
    }

    /// What the network sees of `sample` at this level.
    pub fn scale_input(self, level: NoiseLevel, sample: &Tensor) -> Tensor {
        match self {
            Self::Plain(_) => sample.shallow_clone(),
            Self::Edm { edm, .. } => sample / (level.sigma.powi(2) + edm.sigma_data.powi(2)).sqrt(),
        }
    }

    /// Standard deviation of the sample before the first step. EDM's has the variance of latents in it, for which
    /// diffusers takes 1.
    pub fn initial_deviation(self) -> f64 {
        match self {
            Self::Plain(_) => 1.0,
            Self::Edm { edm, .. } => (edm.sigma_max.powi(2) + 1.0).sqrt(),
        }
    }
}
