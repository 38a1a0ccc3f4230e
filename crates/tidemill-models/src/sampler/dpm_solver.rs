//! DPM-Solver++ (2M) (Lu et al., 2022), as diffusers' DPMSolverMultistepScheduler with its
//! defaults.

use tch::Tensor;

use super::noise_level::{NoiseLevel, Prediction};
use super::timesteps::{evenly_spaced, to_index, trailing_timesteps};
use crate::schedule::{SchedulerConfig, TimestepSpacing, shift_flow};

/// The noise levels of a run of DPM-Solver++, and the latents that the previous step predicted.
#[derive(Debug)]
pub struct DpmSolver {
    prediction: Prediction,
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
        (timesteps, Self::of_levels(config, levels))
    }

    /// Steps over these levels, of which the last is without noise.
    pub fn of_levels(config: &SchedulerConfig, levels: Vec<NoiseLevel>) -> Self {
        Self { prediction: Prediction::new(config), levels, previous_latents: None }
    }

    /// The level before a step.
    pub fn level(&self, step: usize) -> NoiseLevel {
        self.levels[step]
    }

    /// Lu et al., 2022, algorithm 2; the first and the last step are of first order.
    pub fn step(&mut self, step: usize, output: &Tensor, sample: &Tensor) -> Tensor {
        let [now, next] = [self.levels[step], self.levels[step + 1]];
        let latents = self.prediction.latents(now, output, sample);
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

/// The noise levels of rectified flow before each step: even steps of the signal, and then shifted.
pub fn dpm_flow_sigmas(config: &SchedulerConfig, steps: usize, image_seq_len: i64) -> Vec<f64> {
    let total = config.num_train_timesteps as f64;
    let shift = config.flow_shift.for_image(image_seq_len);
    let stride = (1.0 / total - 1.0) / steps as f64;
    // As numpy's linspace computes alphas: where sigma T is near an integer, rounding decides.
    let alpha = |i: usize| if i == steps { 1.0 / total } else { stride * i as f64 + 1.0 };
    (1..=steps).rev().map(|i| shift_flow(1.0 - alpha(i), shift)).collect()
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
