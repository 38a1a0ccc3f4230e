//! The forward process of diffusion (Ho et al., 2020): how much noise a latent has at each timestep,
//! and what the network is asked to predict. Computed in f32 in diffusers' order of operations.

use crate::Error;
use crate::config::{self, Accepted};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// How the betas run from `beta_start` to `beta_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BetaSchedule {
    /// Evenly spaced.
    Linear,
    /// Evenly spaced square roots: Stable Diffusion's.
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

/// `scheduler/scheduler_config.json`, as far as training and the samplers of this crate use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// Number of training timesteps.
    pub num_train_timesteps: i64,
    /// First beta.
    pub beta_start: f64,
    /// Last beta.
    pub beta_end: f64,
    /// The way between them.
    pub beta_schedule: BetaSchedule,
    /// What the network predicts.
    pub prediction_type: PredictionType,
    /// Rescales the betas so that the last timestep is pure noise (Lin et al., 2023, algorithm 1).
    pub rescale_betas_zero_snr: bool,
    /// Which timesteps a sampler visits.
    pub timestep_spacing: TimestepSpacing,
    /// Added to every timestep of the `leading` spacing.
    pub steps_offset: i64,
    /// Whether DDIM's last step goes to no noise at all, or to the first timestep's.
    pub set_alpha_to_one: bool,
    /// Whether predicted latents are clipped to [-1, 1]; wrong for latent diffusion.
    pub clip_sample: bool,
}

impl Default for SchedulerConfig {
    /// DDIMScheduler's, but for `clip_sample`, which StableDiffusionPipeline switches off as well.
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

const ACCEPTED: Accepted = Accepted {
    class_names: &["DDIMScheduler", "DDPMScheduler", "PNDMScheduler", "DPMSolverMultistepScheduler"],
    // Settings of samplers other than ours, of thresholding that is off, and of variances that
    // deterministic samplers do not draw.
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
        let mut object = config::read_object(path)?;
        fill_defaults(&mut object);
        let read: Self = config::parse(path, object, &ACCEPTED)?;
        config::require_positive(path, &[("num_train_timesteps", read.num_train_timesteps)])?;
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

    /// Writes it as a DDIMScheduler's.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        config::write(path, json!({"_class_name": "DDIMScheduler"}), self)
    }
}

/// A file may leave out what its own class has as default, which is not the same for every class.
fn fill_defaults(object: &mut Map<String, Value>) {
    let (key, value) = match object.get("_class_name").and_then(Value::as_str) {
        Some("PNDMScheduler") => ("set_alpha_to_one", Value::from(false)),
        Some("DPMSolverMultistepScheduler") => ("timestep_spacing", Value::from("linspace")),
        _ => return,
    };
    object.entry(key).or_insert(value);
}

/// The noise schedule: cumulative products of the alphas, f32.
#[derive(Debug)]
pub struct NoiseSchedule {
    config: SchedulerConfig,
    alphas_cumprod: Tensor,
}

impl NoiseSchedule {
    /// Computes the schedule on `device`.
    pub fn new(config: SchedulerConfig, device: Device) -> Self {
        let n = config.num_train_timesteps;
        let options = (Kind::Float, Device::Cpu);
        let betas = match config.beta_schedule {
            BetaSchedule::Linear => Tensor::linspace(config.beta_start, config.beta_end, n, options),
            BetaSchedule::ScaledLinear => {
                Tensor::linspace(config.beta_start.sqrt(), config.beta_end.sqrt(), n, options).square()
            }
        };
        let betas = if config.rescale_betas_zero_snr { zero_terminal_snr(&betas) } else { betas };
        let alphas: Tensor = 1.0 - betas;
        let alphas_cumprod = alphas.cumprod(0, Kind::Float).to_device(device);
        Self { config, alphas_cumprod }
    }

    /// Its configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Cumulative products of the alphas, [T], f32.
    pub fn alphas_cumprod(&self) -> &Tensor {
        &self.alphas_cumprod
    }

    /// sqrt(a) and sqrt(1 - a) at `timesteps` [N], shaped to multiply [N, C, h, w], in `kind`.
    fn coefficients(&self, timesteps: &Tensor, kind: Kind) -> (Tensor, Tensor) {
        let a = self.alphas_cumprod.to_kind(kind).index_select(0, timesteps);
        let column = |t: Tensor| t.reshape([-1, 1, 1, 1]);
        let rest: Tensor = 1.0 - &a;
        (column(a.sqrt()), column(rest.sqrt()))
    }

    /// sqrt(a) `latents` + sqrt(1 - a) `noise`.
    pub fn add_noise(&self, latents: &Tensor, noise: &Tensor, timesteps: &Tensor) -> Tensor {
        let (signal, sigma) = self.coefficients(timesteps, latents.kind());
        signal * latents + sigma * noise
    }

    /// What the loss counts at each of the timesteps [T], f32, so that those with little noise do not dominate: min(SNR, `gamma`), over SNR
    /// where the network predicts the noise, and over SNR + 1 where it predicts v, with the signal-to-noise ratio SNR = a / (1 - a) (Hang
    /// et al., *Efficient Diffusion Training via Min-SNR Weighting Strategy*, 2023; as diffusers' training scripts, but for a timestep
    /// without any signal, where they divide 0 by 0).
    pub fn min_snr_weights(&self, gamma: f64) -> Tensor {
        let rest: Tensor = 1.0 - &self.alphas_cumprod;
        // Rounding leaves -0 where a schedule was shifted to end without signal.
        let snr = (&self.alphas_cumprod / rest).abs();
        match self.config.prediction_type {
            PredictionType::Epsilon => (gamma / snr).clamp_max(1.0),
            PredictionType::VPrediction => snr.clamp_max(gamma) / (snr + 1.0),
        }
    }

    /// What the network is to predict from `add_noise`'s result.
    pub fn target(&self, latents: &Tensor, noise: &Tensor, timesteps: &Tensor) -> Tensor {
        match self.config.prediction_type {
            PredictionType::Epsilon => noise.shallow_clone(),
            PredictionType::VPrediction => {
                let (signal, sigma) = self.coefficients(timesteps, latents.kind());
                signal * noise - sigma * latents
            }
        }
    }
}

/// Shifts and scales sqrt(alphas_cumprod) so that the last is zero and the first unchanged
/// (Lin et al., 2023, algorithm 1; as diffusers' `rescale_zero_terminal_snr`). Takes and gives betas.
fn zero_terminal_snr(betas: &Tensor) -> Tensor {
    let alphas: Tensor = 1.0 - betas;
    let root = alphas.cumprod(0, Kind::Float).sqrt();
    let (first, last) = (root.get(0), root.get(-1));
    let root = (root - &last) * (&first / (&first - &last));
    let bar = root.square();
    let n = bar.size()[0];
    let ratios = bar.narrow(0, 1, n - 1) / bar.narrow(0, 0, n - 1);
    1.0 - Tensor::cat(&[bar.narrow(0, 0, 1), ratios], 0)
}
