//! DPM-Solver++ (2M) (Lu et al., 2022), as diffusers' DPMSolverMultistepScheduler with its
//! defaults.

use tch::Tensor;

use super::timesteps::{evenly_spaced, to_index, trailing_timesteps};
use crate::schedule::{PredictionType, SchedulerConfig, TimestepSpacing};

/// The noise levels of a run of DPM-Solver++, and the latents that the previous step predicted.
#[derive(Debug)]
pub struct DpmSolver {
    prediction_type: PredictionType,
    /// sigma before each step, and 0 behind the last one.
    sigmas: Vec<f32>,
    previous_latents: Option<Tensor>,
}

impl DpmSolver {
    /// Returns the timesteps that it visits, too.
    pub fn new(config: &SchedulerConfig, alphas_cumprod: &[f32], steps: usize) -> (Vec<i64>, Self) {
        let total = alphas_cumprod.len();
        let timesteps = dpm_timesteps(total, steps, config.timestep_spacing, config.steps_offset);
        let mut sigmas: Vec<f32> = timesteps
            .iter()
            .map(|t| to_sigma(alphas_cumprod[to_index(*t, total)], config.rescale_betas_zero_snr))
            .collect();
        sigmas.push(0.0);
        let prediction_type = config.prediction_type;
        (timesteps, Self { prediction_type, sigmas, previous_latents: None })
    }

    /// Lu et al., 2022, algorithm 2; the first and the last step are of first order.
    pub fn step(&mut self, step: usize, output: &Tensor, sample: &Tensor) -> Tensor {
        let [now, next] = [step, step + 1].map(|i| NoiseLevel::from_sigma(self.sigmas[i]));
        let latents = match self.prediction_type {
            PredictionType::Epsilon => (sample - output * now.sigma) / now.alpha,
            PredictionType::VPrediction => sample * now.alpha - output * now.sigma,
        };
        let h = next.lambda - now.lambda;
        let latents_factor = next.alpha * ((-h).exp() - 1.0);
        let mut result = sample * (next.sigma / now.sigma) - &latents * latents_factor;
        let is_last = step + 2 == self.sigmas.len();
        if let (Some(previous_latents), false) = (&self.previous_latents, is_last) {
            let previous = NoiseLevel::from_sigma(self.sigmas[step - 1]);
            let ratio = (now.lambda - previous.lambda) / h;
            result -= (&latents - previous_latents) * (0.5 * latents_factor / ratio);
        }
        self.previous_latents = Some(latents);
        result
    }
}

/// A noise level in the variance-preserving parametrisation.
struct NoiseLevel {
    alpha: f64,
    sigma: f64,
    /// Half the log signal-to-noise ratio.
    lambda: f64,
}

impl NoiseLevel {
    fn from_sigma(sigma: f32) -> Self {
        let alpha = 1.0 / (f64::from(sigma).powi(2) + 1.0).sqrt();
        let scaled = f64::from(sigma) * alpha;
        Self { alpha, sigma: scaled, lambda: alpha.ln() - scaled.ln() }
    }
}

/// sqrt((1 - a) / a). With zero terminal SNR, diffusers replaces a zero `a` by 2^-24.
fn to_sigma(alpha_cumprod: f32, is_zero_snr: bool) -> f32 {
    let a = if is_zero_snr && alpha_cumprod == 0.0 { (-24f32).exp2() } else { alpha_cumprod };
    ((1.0 - a) / a).sqrt()
}

fn dpm_timesteps(total: usize, steps: usize, spacing: TimestepSpacing, offset: i64) -> Vec<i64> {
    match spacing {
        TimestepSpacing::Leading => {
            let stride = total / (steps + 1);
            (1..=steps).rev().map(|i| i64::try_from(i * stride).unwrap_or(i64::MAX) + offset).collect()
        }
        TimestepSpacing::Trailing => trailing_timesteps(total, steps),
        TimestepSpacing::Linspace => (1..=steps).rev().map(|i| evenly_spaced(total - 1, i, steps)).collect(),
    }
}
