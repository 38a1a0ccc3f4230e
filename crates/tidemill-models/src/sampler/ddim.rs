//! DDIM (Song et al., 2021) with eta = 0, as diffusers' DDIMScheduler. With the noise levels of rectified
//! flow or EDM it is Euler's method, as FlowMatchEulerDiscreteScheduler and EDMEulerScheduler.

use tch::Tensor;

use super::noise_level::{NoiseLevel, Prediction};
use super::timesteps::{evenly_spaced, to_index, trailing_timesteps};
use crate::error::Error;
use crate::schedule::{FlowShift, PredictionType, SchedulerConfig, TimestepSpacing, shift_flow};

/// The noise levels of a run of DDIM.
#[derive(Debug)]
pub struct Ddim {
    prediction: Prediction,
    /// The levels before and after each step.
    levels: Vec<[NoiseLevel; 2]>,
}

impl Ddim {
    /// Returns the timesteps that it visits, too.
    ///
    /// # Errors
    /// If it would start without signal and the network predicts noise.
    pub fn new(
        config: &SchedulerConfig,
        alphas_cumprod: &[f32],
        steps: usize,
    ) -> Result<(Vec<i64>, Self), Error> {
        let total = alphas_cumprod.len();
        let timesteps = ddim_timesteps(total, steps, config.timestep_spacing, config.steps_offset);
        let stride = i64::try_from(total / steps).unwrap_or(1);
        let last = if config.set_alpha_to_one { 1.0 } else { alphas_cumprod[0] };
        // DDIM goes to `t - T / steps`, which is the next timestep except at the end.
        let before_and_after = |t: &i64| {
            let after = if *t < stride { last } else { alphas_cumprod[to_index(t - stride, total)] };
            [alphas_cumprod[to_index(*t, total)], after].map(diffusion_level)
        };
        let levels: Vec<[NoiseLevel; 2]> = timesteps.iter().map(before_and_after).collect();
        let is_epsilon = config.prediction_type == PredictionType::Epsilon;
        if is_epsilon && levels.iter().any(|[before, _]| before.alpha == 0.0) {
            let message = "a zero-terminal-SNR schedule with noise prediction cannot start at pure \
                           noise: train with prediction = \"v_prediction\"";
            return Err(Error::Sampler(message.into()));
        }
        Ok((timesteps, Self { prediction: Prediction::new(config), levels }))
    }

    /// Euler's method over these levels, of which the last is without noise.
    pub fn of_levels(config: &SchedulerConfig, levels: &[NoiseLevel]) -> Self {
        let levels = levels.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        Self { prediction: Prediction::new(config), levels }
    }

    /// The level before a step.
    pub fn level(&self, step: usize) -> NoiseLevel {
        self.levels[step][0]
    }

    /// Song et al., 2021, formula 12.
    pub fn step(&self, step: usize, output: &Tensor, sample: &Tensor) -> Tensor {
        let [before, after] = self.levels[step];
        let latents = self.prediction.latents(before, output, sample);
        let noise = self.prediction.noise(before, output, sample, &latents);
        latents * after.alpha + noise * after.sigma
    }
}

/// The level with this cumulative product of the alphas.
fn diffusion_level(alpha_cumprod: f32) -> NoiseLevel {
    NoiseLevel { alpha: sqrt(alpha_cumprod), sigma: sqrt(1.0 - alpha_cumprod) }
}

/// The noise levels of rectified flow before each step of Euler's method: evenly spaced from the schedule's last to
/// its first, and then shifted. With a fixed shift diffusers does so although the first is shifted already.
pub fn euler_sigmas(config: &SchedulerConfig, steps: usize, image_seq_len: i64) -> Vec<f32> {
    let least = 1.0 / config.num_train_timesteps as f64;
    let shift = config.flow_shift.for_image(image_seq_len);
    let first = match config.flow_shift {
        FlowShift::Fixed(shift) => shift_flow(least, shift),
        FlowShift::Dynamic(_) => least,
    };
    let stride = if steps > 1 { (first - 1.0) / (steps - 1) as f64 } else { 0.0 };
    (0..steps).map(|i| shift_flow(1.0 + stride * i as f64, shift) as f32).collect()
}

/// The square root in f32, as diffusers computes it.
fn sqrt(x: f32) -> f64 {
    f64::from(x.sqrt())
}

fn ddim_timesteps(total: usize, steps: usize, spacing: TimestepSpacing, offset: i64) -> Vec<i64> {
    match spacing {
        TimestepSpacing::Leading => {
            let stride = total / steps;
            (0..steps).rev().map(|i| i64::try_from(i * stride).unwrap_or(i64::MAX) + offset).collect()
        }
        TimestepSpacing::Trailing => trailing_timesteps(total, steps),
        TimestepSpacing::Linspace => {
            (0..steps).rev().map(|i| evenly_spaced(total - 1, i, steps - 1)).collect()
        }
    }
}
