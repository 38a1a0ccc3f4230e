//! `scheduler/scheduler_config.json`: the noise schedule and the prediction type, and their checks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::edm::EdmConfig;
use super::flow_shift::FlowShift;
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
    /// Shift of the noise levels of rectified flow. Checkpoints of schedules without one do not name it.
    #[serde(skip_serializing_if = "FlowShift::is_none")]
    pub flow_shift: FlowShift,
    /// The noise levels of EDM, in place of the betas; `prediction_type` is then the sign of the network's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edm: Option<EdmConfig>,
}

/// How noise gets into latents.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoiseProcess<'a> {
    /// Of variance one: sqrt(a) latents + sqrt(1 - a) noise.
    Diffusion,
    /// (1 - sigma) latents + sigma noise.
    Flow,
    /// latents + sigma noise, with the network's preconditioning.
    Edm(&'a EdmConfig),
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
            flow_shift: FlowShift::NONE,
            edm: None,
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
        EDM_EULER,
        "EDMDPMSolverMultistepScheduler",
    ],
    // Settings of samplers that this crate does not have, of thresholding and dynamic shifting where they are
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

/// The class of EDM's schedule.
const EDM_EULER: &str = "EDMEulerScheduler";

impl SchedulerConfig {
    /// Reads `scheduler_config.json` of a DDPM, DDIM, PNDM, DPM-Solver, flow-matching or EDM scheduler.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut object = config_file::read_object(path)?;
        check_class_options(path, &object)?;
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
        let of_shift = read.flow_shift.find_problem().map(|problem| format!("shift: {problem}"));
        match of_shift.or_else(|| read.edm?.find_problem()) {
            Some(message) => Err(Error::Json { path: path.into(), message }),
            None => Ok(read),
        }
    }

    /// How noise gets into latents.
    pub(crate) fn process(&self) -> NoiseProcess<'_> {
        match (&self.edm, self.is_flow()) {
            (Some(edm), _) => NoiseProcess::Edm(edm),
            (None, true) => NoiseProcess::Flow,
            (None, false) => NoiseProcess::Diffusion,
        }
    }

    /// The sign with which a preconditioned network's output counts: EDMEulerScheduler has -1 for v prediction.
    pub(crate) fn edm_output_sign(&self) -> f64 {
        if self.prediction_type == PredictionType::VPrediction { -1.0 } else { 1.0 }
    }

    /// Whether the network predicts rectified flow.
    pub fn is_flow(&self) -> bool {
        self.prediction_type == PredictionType::FlowPrediction
    }

    /// The class of diffusers that [`Self::write`] writes for.
    pub fn class_name(&self, form: SchedulerForm) -> &'static str {
        match (form, self.process()) {
            (SchedulerForm::StableDiffusion3Pipeline, _) => FLOW_MATCH_EULER,
            // This pipeline cannot call FlowMatchEulerDiscreteScheduler, which has no scale_model_input.
            (_, NoiseProcess::Flow) => "DPMSolverMultistepScheduler",
            (_, NoiseProcess::Diffusion) => "DDIMScheduler",
            (_, NoiseProcess::Edm(_)) => EDM_EULER,
        }
    }

    /// Writes the configuration for [`Self::class_name`].
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path, form: SchedulerForm) -> Result<(), Error> {
        let head = json!({"_class_name": self.class_name(form)});
        let count = self.num_train_timesteps;
        match (form, self.process()) {
            (SchedulerForm::StableDiffusion3Pipeline, _) => {
                let values = flow_match_keys(self.flow_shift, json!({"num_train_timesteps": count}));
                config_file::write(path, head, &values)
            }
            (_, NoiseProcess::Edm(edm)) => {
                let prediction = self.prediction_type;
                let values = json!({"num_train_timesteps": count, "prediction_type": prediction});
                config_file::write(path, merge(head, values), edm)
            }
            (SchedulerForm::StableDiffusionPipeline { image_seq_len }, NoiseProcess::Flow) => {
                // This pipeline has no shift by size: images of the trained size get theirs.
                let flow_shift = FlowShift::Fixed(self.flow_shift.for_image(image_seq_len));
                let head = merge(head, json!({"use_flow_sigmas": true}));
                config_file::write(path, head, &Self { flow_shift, ..self.clone() })
            }
            (_, NoiseProcess::Diffusion) => config_file::write(path, head, self),
        }
    }
}

/// The keys of FlowMatchEulerDiscreteScheduler that stand for a shift, beside those of `values`.
fn flow_match_keys(shift: FlowShift, values: Value) -> Value {
    match shift {
        FlowShift::Fixed(shift) => merge(values, json!({"shift": shift})),
        FlowShift::Dynamic(dynamic) => {
            merge(merge(values, json!({"use_dynamic_shifting": true})), json!(dynamic))
        }
    }
}

/// The keys of two objects.
fn merge(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

/// The pipeline of diffusers for which a schedule is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerForm {
    /// `StableDiffusionPipeline` and `StableDiffusionXLPipeline`, for images of so many tokens.
    StableDiffusionPipeline {
        /// As [`Denoiser::image_seq_len`](crate::Denoiser::image_seq_len).
        image_seq_len: i64,
    },
    /// `StableDiffusion3Pipeline`, which samples rectified flow only.
    StableDiffusion3Pipeline,
}

/// Refuses options that count for some classes only, where others have them as settings of samplers.
fn check_class_options(path: &Path, object: &Map<String, Value>) -> Result<(), Error> {
    let is_edm =
        object.get("_class_name").and_then(Value::as_str).is_some_and(|name| name.starts_with("EDM"));
    let has_dynamic_shift = object.get("use_dynamic_shifting") == Some(&Value::Bool(true));
    for (counts, key, allowed) in
        [(has_dynamic_shift, "time_shift_type", "exponential"), (is_edm, "final_sigmas_type", "zero")]
    {
        if let Some(value) = object.get(key).filter(|value| counts && *value != allowed) {
            return Err(Error::Unsupported {
                path: path.into(),
                key: key.into(),
                value: value.to_string(),
                allowed: format!("it must be \"{allowed}\""),
            });
        }
    }
    Ok(())
}

/// Adds the defaults that differ between scheduler classes: a file may omit a key that has the
/// default of its own class. A flow-matching scheduler gets the keys that a DPM-Solver has for flows.
fn add_class_defaults(object: &mut Map<String, Value>) {
    let (key, value) = match object.get("_class_name").and_then(Value::as_str) {
        Some("PNDMScheduler") => ("set_alpha_to_one", Value::from(false)),
        Some("DPMSolverMultistepScheduler") => ("timestep_spacing", Value::from("linspace")),
        Some(FLOW_MATCH_EULER) => {
            let shift = object.remove("shift").unwrap_or_else(|| 1.0.into());
            let shift = take_dynamic_shift(object).unwrap_or(shift);
            object.insert("flow_shift".into(), shift);
            object.insert("use_flow_sigmas".into(), true.into());
            ("prediction_type", Value::from("flow_prediction"))
        }
        Some(class) if class.starts_with("EDM") => {
            let keys = ["sigma_min", "sigma_max", "sigma_data", "sigma_schedule", "rho"];
            let edm = take_keys(object, &keys);
            object.insert("edm".into(), edm);
            return;
        }
        _ => return,
    };
    object.entry(key).or_insert(value);
}

/// Takes the keys of a shift that follows from the size of the image, if it is on.
fn take_dynamic_shift(object: &mut Map<String, Value>) -> Option<Value> {
    if object.get("use_dynamic_shifting") != Some(&Value::Bool(true)) {
        return None;
    }
    object.remove("use_dynamic_shifting");
    let keys = ["base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len"];
    Some(take_keys(object, &keys))
}

/// Takes these keys as an object of their own.
fn take_keys(object: &mut Map<String, Value>, keys: &[&str]) -> Value {
    let taken = keys.iter().filter_map(|key| Some(((*key).to_owned(), object.remove(*key)?)));
    Value::Object(taken.collect())
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
