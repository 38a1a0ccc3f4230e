//! DDIM (Song et al., 2021) with eta = 0, as diffusers' DDIMScheduler. With the noise levels of rectified
//! flow it is Euler's method, as FlowMatchEulerDiscreteScheduler.

use tch::Tensor;

use super::noise_level::NoiseLevel;
use super::timesteps::{evenly_spaced, shift_flow, to_index, trailing_timesteps};
use crate::error::Error;
use crate::schedule::{PredictionType, SchedulerConfig, TimestepSpacing};

/// The noise levels of a run of DDIM.
#[derive(Debug)]
pub struct Ddim {
    prediction_type: PredictionType,
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
        let prediction_type = config.prediction_type;
        if prediction_type == PredictionType::Epsilon && levels.iter().any(|[before, _]| before.alpha == 0.0)
        {
            let message = "a zero-terminal-SNR schedule with noise prediction cannot start at pure \
                           noise: train with prediction = \"v_prediction\"";
            return Err(Error::Sampler(message.into()));
        }
        Ok((timesteps, Self { prediction_type, levels }))
    }

    /// Steps of rectified flow. Returns the timesteps that it visits, too.
    pub fn of_flow(config: &SchedulerConfig, steps: usize) -> (Vec<f32>, Self) {
        let sigmas = euler_sigmas(config, steps);
        let timesteps = sigmas.iter().map(|sigma| sigma * config.num_train_timesteps as f32).collect();
        let after = sigmas.iter().skip(1).chain([&0.0]);
        let levels =
            sigmas.iter().zip(after).map(|(before, after)| [before, after].map(|s| NoiseLevel::flow(*s)));
        (timesteps, Self { prediction_type: config.prediction_type, levels: levels.collect() })
    }

    /// Song et al., 2021, formula 12.
    pub fn step(&self, step: usize, output: &Tensor, sample: &Tensor) -> Tensor {
        let [before, after] = self.levels[step];
        let latents = before.predicted_latents(self.prediction_type, output, sample);
        let noise = before.predicted_noise(self.prediction_type, output, sample);
        latents * after.alpha + noise * after.sigma
    }
}

/// The level with this cumulative product of the alphas.
fn diffusion_level(alpha_cumprod: f32) -> NoiseLevel {
    NoiseLevel { alpha: sqrt(alpha_cumprod), sigma: sqrt(1.0 - alpha_cumprod) }
}

/// The noise levels before each step: evenly spaced from the schedule's last to its first, and then shifted,
/// which diffusers does although the schedule's are shifted already.
fn euler_sigmas(config: &SchedulerConfig, steps: usize) -> Vec<f32> {
    let total = config.num_train_timesteps as f64;
    let first = shift_flow(1.0 / total, config.flow_shift);
    let stride = if steps > 1 { (first - 1.0) / (steps - 1) as f64 } else { 0.0 };
    (0..steps).map(|i| shift_flow(1.0 + stride * i as f64, config.flow_shift) as f32).collect()
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
