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
    /// The flow noise - latents of rectified flow (Liu et al., 2022; Esser et al., 2024), whose noisy latents
    /// are (1 - sigma) latents + sigma noise. The betas have no meaning then.
    FlowPrediction,
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
    /// Shift of the noise levels of rectified flow: sigma becomes shift sigma / (1 + (shift - 1) sigma). Above 1
    /// there is more noise, as images of more pixels need (Esser et al., 2024, section 5.3.2).
    #[serde(skip_serializing_if = "is_no_shift")]
    pub flow_shift: f64,
}

/// Schedules that are no flow are written without a shift, as before there were others.
fn is_no_shift(shift: &f64) -> bool {
    *shift == 1.0
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
            flow_shift: 1.0,
        }
    }
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &[
        "DDIMScheduler",
        "DDPMScheduler",
        "PNDMScheduler",
        "DPMSolverMultistepScheduler",
        FLOW_MATCH_EULER,
    ],
    // Settings of samplers that this crate does not have, of thresholding and dynamic shifting, which must be
    // off, and of variances, which deterministic samplers do not draw.
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
        "time_shift_type",
        "base_shift",
        "max_shift",
        "base_image_seq_len",
        "max_image_seq_len",
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
        ("invert_sigmas", &["false"]),
        ("shift_terminal", &["null"]),
        ("stochastic_sampling", &["false"]),
    ],
};

/// The class of SD3's schedule.
const FLOW_MATCH_EULER: &str = "FlowMatchEulerDiscreteScheduler";

impl SchedulerConfig {
    /// Reads `scheduler_config.json` of a DDPM, DDIM, PNDM, DPM-Solver or flow-matching scheduler.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut object = config_file::read_object(path)?;
        add_class_defaults(&mut object);
        let uses_flow_sigmas = take_flow_sigmas(&mut object);
        let read: Self = config_file::parse(path, object, &ACCEPTED)?;
        config_file::require_positive(path, &[("num_train_timesteps", read.num_train_timesteps)])?;
        let unsupported = |key: &str, value: String, allowed: &str| {
            Err(Error::Unsupported { path: path.into(), key: key.into(), value, allowed: allowed.into() })
        };
        if read.clip_sample {
            return unsupported("clip_sample", "true".into(), "it must be false: latents are not bounded");
        }
        if read.is_flow() != uses_flow_sigmas {
            let allowed = "it must be true with `prediction_type` = \"flow_prediction\", and false without";
            return unsupported("use_flow_sigmas", uses_flow_sigmas.to_string(), allowed);
        }
        if !(read.flow_shift > 0.0 && read.flow_shift.is_finite()) {
            return unsupported("flow_shift", read.flow_shift.to_string(), "it must be a positive number");
        }
        Ok(read)
    }

    /// Whether the network predicts rectified flow.
    pub fn is_flow(&self) -> bool {
        self.prediction_type == PredictionType::FlowPrediction
    }

    /// The class of diffusers that [`Self::write`] writes for.
    pub fn class_name(&self, form: SchedulerForm) -> &'static str {
        match (form, self.is_flow()) {
            (SchedulerForm::StableDiffusion3Pipeline, _) => FLOW_MATCH_EULER,
            // This pipeline cannot call FlowMatchEulerDiscreteScheduler, which has no scale_model_input.
            (SchedulerForm::StableDiffusionPipeline, true) => "DPMSolverMultistepScheduler",
            (SchedulerForm::StableDiffusionPipeline, false) => "DDIMScheduler",
        }
    }

    /// Writes the configuration for [`Self::class_name`].
    pub fn write(&self, path: &Path, form: SchedulerForm) -> Result<(), Error> {
        let mut head = json!({"_class_name": self.class_name(form)});
        if form == SchedulerForm::StableDiffusion3Pipeline {
            let values = json!({"num_train_timesteps": self.num_train_timesteps, "shift": self.flow_shift});
            return config_file::write(path, head, &values);
        }
        if self.is_flow() {
            head["use_flow_sigmas"] = true.into();
        }
        config_file::write(path, head, self)
    }
}

/// The pipeline of diffusers for which a schedule is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerForm {
    /// `StableDiffusionPipeline` and `StableDiffusionXLPipeline`.
    StableDiffusionPipeline,
    /// `StableDiffusion3Pipeline`, which samples rectified flow only.
    StableDiffusion3Pipeline,
}

/// Adds the defaults that differ between scheduler classes: a file may omit a key that has the
/// default of its own class. A flow-matching scheduler gets the keys that a DPM-Solver has for flows.
fn add_class_defaults(object: &mut Map<String, Value>) {
    let (key, value) = match object.get("_class_name").and_then(Value::as_str) {
        Some("PNDMScheduler") => ("set_alpha_to_one", Value::from(false)),
        Some("DPMSolverMultistepScheduler") => ("timestep_spacing", Value::from("linspace")),
        Some(FLOW_MATCH_EULER) => {
            let shift = object.remove("shift").unwrap_or_else(|| 1.0.into());
            object.insert("flow_shift".into(), shift);
            object.insert("use_flow_sigmas".into(), true.into());
            ("prediction_type", Value::from("flow_prediction"))
        }
        _ => return,
    };
    object.entry(key).or_insert(value);
}

/// Takes the key `use_flow_sigmas`. Without it a shift has no meaning, and is taken, too.
fn take_flow_sigmas(object: &mut Map<String, Value>) -> bool {
    let uses_flow_sigmas = object.get("use_flow_sigmas").and_then(Value::as_bool).unwrap_or(false);
    if uses_flow_sigmas {
        object.remove("use_flow_sigmas");
    } else {
        object.remove("flow_shift");
    }
    uses_flow_sigmas
}
