//! DDIM (Song et al., 2021) with eta = 0, as diffusers' DDIMScheduler.

use tch::Tensor;

use super::timesteps::{evenly_spaced, to_index, trailing_timesteps};
use crate::error::Error;
use crate::schedule::{PredictionType, SchedulerConfig, TimestepSpacing};

/// The noise levels of a run of DDIM.
#[derive(Debug)]
pub struct Ddim {
    prediction_type: PredictionType,
    /// alphas_cumprod before and after each step.
    alphas_cumprod: Vec<[f32; 2]>,
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
            [alphas_cumprod[to_index(*t, total)], after]
        };
        let levels: Vec<[f32; 2]> = timesteps.iter().map(before_and_after).collect();
        let prediction_type = config.prediction_type;
        if prediction_type == PredictionType::Epsilon && levels.iter().any(|[before, _]| *before == 0.0) {
            let message = "a zero-terminal-SNR schedule with noise prediction cannot start at pure \
                           noise: train with prediction = \"v_prediction\"";
            return Err(Error::Sampler(message.into()));
        }
        Ok((timesteps, Self { prediction_type, alphas_cumprod: levels }))
    }

    /// Song et al., 2021, formula 12.
    pub fn step(&self, step: usize, output: &Tensor, sample: &Tensor) -> Tensor {
        let [before, after] = self.alphas_cumprod[step];
        let (alpha, sigma) = (sqrt(before), sqrt(1.0 - before));
        let (latents, noise) = match self.prediction_type {
            PredictionType::Epsilon => ((sample - output * sigma) / alpha, output.shallow_clone()),
            PredictionType::VPrediction => (sample * alpha - output * sigma, output * alpha + sample * sigma),
        };
        latents * sqrt(after) + noise * sqrt(1.0 - after)
    }
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
