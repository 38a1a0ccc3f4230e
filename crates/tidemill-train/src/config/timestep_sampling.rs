//! `train.timesteps`: the distribution from which `objective/timestep_sampling.rs` samples
//! timesteps.

use serde::{Deserialize, Serialize};

/// `train.timesteps`: how a timestep is sampled from the schedule's T timesteps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TimestepSampling {
    /// Uniformly.
    #[default]
    Uniform,
    /// Uniformly, but spread evenly over each global batch: of N rows the i-th gets ((u + i / N)
    /// mod 1) T, with one u drawn per step (Kingma et al., *Variational Diffusion Models*, 2021,
    /// I.1). The loss varies less from step to step.
    Stratified,
    /// floor(sigmoid(x) T) with normal x: timesteps in the middle are more frequent (Esser et al.,
    /// *Scaling Rectified Flow Transformers*, 2024; as diffusers'
    /// `compute_density_for_timestep_sampling`).
    LogitNormal {
        /// Mean of x. Above 0, late timesteps with much noise are more frequent.
        #[serde(default)]
        mean: f64,
        /// Standard deviation of x.
        #[serde(default = "default_std")]
        std: f64,
    },
    /// The timestep whose noise level is nearest to exp(x) with normal x, for [EDM](tidemill_models::EdmConfig) only
    /// (Karras et al., 2022, table 1).
    LogNormal {
        /// Mean of x.
        #[serde(default = "default_log_mean")]
        mean: f64,
        /// Standard deviation of x.
        #[serde(default = "default_log_std")]
        std: f64,
    },
}

fn default_log_mean() -> f64 {
    -1.2
}

fn default_log_std() -> f64 {
    1.2
}

fn default_std() -> f64 {
    1.0
}

impl TimestepSampling {
    /// Describes what is wrong with the parameters, if anything.
    pub(super) fn find_problem(self) -> Option<String> {
        match self {
            Self::LogitNormal { mean, std } | Self::LogNormal { mean, std }
                if !(mean.is_finite() && std.is_finite() && std > 0.0) =>
            {
                Some(format!("mean = {mean} must be a number, and std = {std} a positive one"))
            }
            _ => None,
        }
    }
}
