//! `scheduler/scheduler_config.json`: the noise schedule and the prediction type, and their checks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::model_folder::config_file::{self, AcceptedKeys};

/// How betas are spaced between `beta_start` and `beta_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BetaSchedule {
    /// Evenly spaced.
    Linear,
    /// Square roots are evenly spaced, as in Stable Diffusion.
    ScaledLinear,
}

/// What the network predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictionType {
    /// The noise.
    Epsilon,
    /// The velocity sqrt(a) noise - sqrt(1 - a) latents (Salimans & Ho, 2022).
    VPrediction,
}

/// Which of the training timesteps a sampler visits (Lin et al., 2023, table 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimestepSpacing {
    /// Multiples of the stride, from 0 (plus `steps_offset`).
    Leading,
    /// Multiples of the stride, from the end.
    Trailing,
    /// Evenly spaced from the first to the last.
    Linspace,
}

/// The keys of `scheduler/scheduler_config.json` that training and the samplers of this crate use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// Number of training timesteps.
    pub num_train_timesteps: i64,
    /// First beta.
    pub beta_start: f64,
    /// Last beta.
    pub beta_end: f64,
    /// How the betas between them are spaced.
    pub beta_schedule: BetaSchedule,
    /// What the network predicts.
    pub prediction_type: PredictionType,
    /// Rescales the betas so that the last timestep is pure noise (Lin et al., 2023, algorithm 1).
    pub rescale_betas_zero_snr: bool,
    /// Which timesteps a sampler visits.
    pub timestep_spacing: TimestepSpacing,
    /// Added to every timestep of the `leading` spacing.
    pub steps_offset: i64,
    /// Whether DDIM's last step removes all noise, or leaves the noise of the first timestep.
    pub set_alpha_to_one: bool,
    /// Whether predicted latents are clipped to [-1, 1]; wrong for latent diffusion.
    pub clip_sample: bool,
}

impl Default for SchedulerConfig {
    /// The defaults of DDIMScheduler, except for `clip_sample`, which StableDiffusionPipeline
    /// switches off as well.
    fn default() -> Self {
        Self {
            num_train_timesteps: 1000,
            beta_start: 0.0001,
            beta_end: 0.02,
            beta_schedule: BetaSchedule::Linear,
            prediction_type: PredictionType::Epsilon,
            rescale_betas_zero_snr: false,
            timestep_spacing: TimestepSpacing::Leading,
            steps_offset: 0,
            set_alpha_to_one: true,
            clip_sample: false,
        }
    }
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &["DDIMScheduler", "DDPMScheduler", "PNDMScheduler", "DPMSolverMultistepScheduler"],
    // Settings of samplers that this crate does not have, of thresholding, which must be off, and
    // of variances, which deterministic samplers do not draw.
    ignored: &[
        "skip_prk_steps",
        "clip_sample_range",
        "dynamic_thresholding_ratio",
        "sample_max_value",
        "variance_type",
        "lambda_min_clipped",
        "solver_order",
        "solver_type",
        "lower_order_final",
        "euler_at_final",
        "final_sigmas_type",
        "algorithm_type",
        "flow_shift",
        "time_shift_type",
    ],
    fixed: &[
        ("trained_betas", &["null"]),
        ("thresholding", &["false"]),
        ("use_karras_sigmas", &["false", "null"]),
        ("use_exponential_sigmas", &["false", "null"]),
        ("use_beta_sigmas", &["false", "null"]),
        ("use_lu_lambdas", &["false", "null"]),
        ("use_flow_sigmas", &["false", "null"]),
        ("use_dynamic_shifting", &["false"]),
    ],
};

impl SchedulerConfig {
    /// Reads `scheduler_config.json` of a DDPM, DDIM, PNDM or DPM-Solver scheduler.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut object = config_file::read_object(path)?;
        add_class_defaults(&mut object);
        let read: Self = config_file::parse(path, object, &ACCEPTED)?;
        config_file::require_positive(path, &[("num_train_timesteps", read.num_train_timesteps)])?;
        if read.clip_sample {
            return Err(Error::Unsupported {
                path: path.into(),
                key: "clip_sample".into(),
                value: "true".into(),
                allowed: "it must be false: latents are not bounded".into(),
            });
        }
        Ok(read)
    }

    /// Writes the configuration of a DDIMScheduler.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        config_file::write(path, json!({"_class_name": "DDIMScheduler"}), self)
    }
}

/// Adds the defaults that differ between scheduler classes: a file may omit a key that has the
/// default of its own class.
fn add_class_defaults(object: &mut Map<String, Value>) {
    let (key, value) = match object.get("_class_name").and_then(Value::as_str) {
        Some("PNDMScheduler") => ("set_alpha_to_one", Value::from(false)),
        Some("DPMSolverMultistepScheduler") => ("timestep_spacing", Value::from("linspace")),
        _ => return,
    };
    object.entry(key).or_insert(value);
}
