//! Loss weighting: min-SNR weights of the timesteps (Hang et al., *Efficient Diffusion Training via
//! Min-SNR Weighting*, 2023).

use tch::{Kind, Tensor};
use tidemill_models::NoiseSchedule;
use tidemill_torch::guard;

use crate::Error;

/// The weight of each timestep's loss.
#[derive(Debug)]
pub struct LossWeights {
    /// [T], f32, on the device.
    by_timestep: Tensor,
}

impl LossWeights {
    /// Min-SNR weights: min(SNR, gamma), divided by the weight that the schedule's prediction type
    /// implies.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn min_snr(schedule: &NoiseSchedule, gamma: f64) -> Result<Self, Error> {
        Ok(Self { by_timestep: guard(|| schedule.min_snr_weights(gamma))? })
    }

    /// The weights of rows with these timesteps: [N], f32.
    pub fn select(&self, timesteps: &Tensor) -> Tensor {
        self.by_timestep.index_select(0, timesteps)
    }
}

/// The sum of the rows' errors [N], each times its weight [N]; without weights all rows weigh the
/// same.
pub fn sum_losses(errors: &Tensor, weights: Option<&Tensor>) -> Tensor {
    match weights {
        Some(weights) => (errors * weights).sum(Kind::Float),
        None => errors.sum(Kind::Float),
    }
}
