//! DPM-Solver++ (2M) (Lu et al., 2022), as diffusers' DPMSolverMultistepScheduler with its
//! defaults.

use tch::Tensor;

use super::noise_level::NoiseLevel;
use super::timesteps::{evenly_spaced, shift_flow, to_index, trailing_timesteps};
use crate::schedule::{PredictionType, SchedulerConfig, TimestepSpacing};

/// The noise levels of a run of DPM-Solver++, and the latents that the previous step predicted.
#[derive(Debug)]
pub struct DpmSolver {
    prediction_type: PredictionType,
    /// The level before each step, and the one without noise behind the last one.
    levels: Vec<NoiseLevel>,
    previous_latents: Option<Tensor>,
}

impl DpmSolver {
    /// Returns the timesteps that it visits, too.
    pub fn new(config: &SchedulerConfig, alphas_cumprod: &[f32], steps: usize) -> (Vec<i64>, Self) {
        let total = alphas_cumprod.len();
        let timesteps = dpm_timesteps(total, steps, config.timestep_spacing, config.steps_offset);
        let sigmas = timesteps
            .iter()
            .map(|t| to_sigma(alphas_cumprod[to_index(*t, total)], config.rescale_betas_zero_snr));
        let levels = sigmas.chain([0.0]).map(variance_preserving).collect();
        (timesteps, Self { prediction_type: config.prediction_type, levels, previous_latents: None })
    }

    /// Steps of rectified flow. Returns the timesteps that it visits, too: diffusers rounds them down.
    pub fn of_flow(config: &SchedulerConfig, steps: usize) -> (Vec<f32>, Self) {
        let total = config.num_train_timesteps as f64;
        let stride = (1.0 / total - 1.0) / steps as f64;
        // As numpy's linspace computes alphas: where sigma T is near an integer, rounding decides.
        let alpha = |i: usize| if i == steps { 1.0 / total } else { stride * i as f64 + 1.0 };
        let sigmas: Vec<f64> =
            (1..=steps).rev().map(|i| shift_flow(1.0 - alpha(i), config.flow_shift)).collect();
        let timesteps = sigmas.iter().map(|sigma| (sigma * total).floor() as f32).collect();
        let levels = sigmas.iter().chain([&0.0]).map(|sigma| NoiseLevel::flow(*sigma as f32)).collect();
        (timesteps, Self { prediction_type: config.prediction_type, levels, previous_latents: None })
    }

    /// Lu et al., 2022, algorithm 2; the first and the last step are of first order.
    pub fn step(&mut self, step: usize, output: &Tensor, sample: &Tensor) -> Tensor {
        let [now, next] = [self.levels[step], self.levels[step + 1]];
        let latents = now.predicted_latents(self.prediction_type, output, sample);
        let h = next.lambda() - now.lambda();
        let latents_factor = next.alpha * ((-h).exp() - 1.0);
        let mut result = sample * (next.sigma / now.sigma) - &latents * latents_factor;
        let is_last = step + 2 == self.levels.len();
        if let (Some(previous_latents), false) = (&self.previous_latents, is_last) {
            let ratio = (now.lambda() - self.levels[step - 1].lambda()) / h;
            result -= (&latents - previous_latents) * (0.5 * latents_factor / ratio);
        }
        self.previous_latents = Some(latents);
        result
    }
}

/// The level whose noise is sigma times its signal, with alpha^2 + sigma^2 = 1.
fn variance_preserving(sigma: f32) -> NoiseLevel {
    let alpha = 1.0 / (f64::from(sigma).powi(2) + 1.0).sqrt();
    NoiseLevel { alpha, sigma: f64::from(sigma) * alpha }
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
