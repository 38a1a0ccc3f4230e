//! A noise level, and what a network's output says about latents and noise there.

use tch::Tensor;

use crate::schedule::PredictionType;

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

    /// The latents that the network's `output` for `sample` implies.
    pub fn predicted_latents(self, predicts: PredictionType, output: &Tensor, sample: &Tensor) -> Tensor {
        match predicts {
            PredictionType::Epsilon => (sample - output * self.sigma) / self.alpha,
            PredictionType::VPrediction => sample * self.alpha - output * self.sigma,
            PredictionType::FlowPrediction => sample - output * self.sigma,
        }
    }

    /// The noise that the network's `output` for `sample` implies.
    pub fn predicted_noise(self, predicts: PredictionType, output: &Tensor, sample: &Tensor) -> Tensor {
        match predicts {
            PredictionType::Epsilon => output.shallow_clone(),
            PredictionType::VPrediction => output * self.alpha + sample * self.sigma,
            PredictionType::FlowPrediction => sample + output * self.alpha,
        }
    }
}
