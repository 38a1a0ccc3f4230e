//! What of `[train]` says how latents are noised, and how the loss weighs them.

use serde::{Deserialize, Serialize};

/// How timesteps are drawn, of the schedule's T.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Timesteps {
    /// Each as likely as any other.
    #[default]
    Uniform,
    /// As uniform, but spread evenly over each global batch: of N rows the i-th gets ((u + i / N) mod 1) T, with one u drawn per step
    /// (Kingma et al., *Variational Diffusion Models*, 2021, I.1). The loss varies less from step to step.
    Stratified,
    /// floor(sigmoid(x) T) with x normal: more of those in the middle (Esser et al., *Scaling Rectified Flow Transformers*, 2024; as
    /// diffusers' `compute_density_for_timestep_sampling`).
    LogitNormal {
        /// Of x; above 0 there are more late timesteps, with much noise.
        #[serde(default)]
        mean: f64,
        /// Standard deviation of x.
        #[serde(default = "one")]
        std: f64,
    },
}

fn one() -> f64 {
    1.0
}

impl Timesteps {
    /// What is wrong with it.
    pub(super) fn problem(self) -> Option<String> {
        match self {
            Self::LogitNormal { mean, std } if !(mean.is_finite() && std.is_finite() && std > 0.0) => {
                Some(format!("mean = {mean} must be a number, and std = {std} a positive one"))
            }
            _ => None,
        }
    }
}
