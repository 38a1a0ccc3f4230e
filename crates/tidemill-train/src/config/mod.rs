//! The sections of the run file that belong to the trainer: `[train]`, what is in it, and `[checkpoint]`, with the checks that need no dataset.

use crate::Error;
use std::collections::{BTreeMap, BTreeSet};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tidemill_models::PredictionType;

pub use self::checkpoint::{CheckpointConfig, Writers};
pub use self::data::{MixConfig, StreamingConfig};
pub use self::objective::Timesteps;
pub use self::phase::PhaseConfig;
pub use self::preview::PreviewConfig;
pub use self::profile::ProfileConfig;
pub use self::schedule::LrSchedule;
pub use self::trouble::{HealthConfig, NotFinite, SpikeAction, SpikeConfig};
pub use self::validation::ValidationConfig;

mod checkpoint;
mod data;
mod objective;
mod phase;
mod preview;
mod profile;
mod schedule;
mod trouble;
mod validation;

/// `[train]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Samples per optimizer step.
    pub global_batch: usize,
    /// Samples per forward and backward pass; gradients are accumulated over the rest.
    pub micro_batch: usize,
    /// Names of parameters that stay as they are, as in `["down_blocks.*", "*.attn1.*"]`: `*` stands for anything, `?` for one
    /// character.
    pub freeze: Vec<String>,
    /// Whether layers keep nothing but their inputs for the backward pass, which computes the rest again: less memory, and a forward
    /// pass more.
    pub gradient_checkpointing: bool,
    /// Whether a step on a GPU is recorded once and then started as a whole (CUDA graphs), so that the GPU does not wait for the host
    /// between its kernels.
    pub cuda_graph: bool,
    /// Arithmetic of the forward and backward pass; unset: bf16 if all ranks' devices have it, else f32. Master weights are f32 in either case.
    pub precision: Option<Precision>,
    /// Arithmetic of group and layer normalisation; unset: as all of it. In bf16 only means and variances are f32.
    pub norm_precision: Option<Precision>,
    /// In what AdamW's moments are kept. In bf16, which is half as much memory, they are rounded up or down at random, so that they are
    /// right on average.
    pub moment_precision: Precision,
    /// What each of several ranks has of gradients and optimizer state.
    pub sharding: Sharding,
    /// In what gradients cross the network.
    pub reduce_precision: Precision,
    /// Gradients and weights cross the network in buckets of so many bytes; unset: an eighth of the gradients, at least 1 MiB and
    /// at most 32 MiB.
    pub bucket_bytes: Option<ByteSize>,
    /// What becomes of a step whose loss or gradient is not finite.
    pub not_finite: NotFinite,
    /// What becomes of a step whose loss is far above those before it; unset: nothing.
    pub spike: Option<SpikeConfig>,
    /// What is asked of several ranks before the first step.
    pub health: HealthConfig,
    /// Learning rate after warm-up, unless a phase has its own.
    pub learning_rate: f64,
    /// Steps over which the learning rate rises from 0.
    pub warmup_steps: u64,
    /// What the learning rate does after warm-up.
    pub schedule: LrSchedule,
    /// Decay rates of AdamW's moments.
    pub betas: (f64, f64),
    /// AdamW's epsilon.
    pub eps: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global norm of the gradients; 0 switches clipping off.
    pub max_grad_norm: f64,
    /// Share of the samples whose caption is replaced by the empty one, drawn anew every epoch.
    pub caption_dropout: f64,
    /// What the U-Net predicts; unset: what the model's scheduler says.
    pub prediction: Option<PredictionType>,
    /// Rescales the noise schedule so that its last step is pure noise; unset: as the scheduler says.
    pub zero_terminal_snr: Option<bool>,
    /// How timesteps are drawn.
    pub timesteps: Timesteps,
    /// Adds to the noise of each sample and channel one normal number times this, so that pictures can become darker or brighter as a
    /// whole (`noise_offset` of diffusers' scripts).
    pub noise_offset: f64,
    /// Weighs the loss of each sample by min(SNR, this) over what the prediction makes of it, so that timesteps with little noise do not
    /// dominate (Hang et al., *Efficient Diffusion Training via Min-SNR Weighting*, 2023; 5 is usual); unset: all alike.
    pub min_snr_gamma: Option<f64>,
    /// Exponential moving average of the weights.
    pub ema: Option<EmaConfig>,
    /// Blocks of a dataset and bucket that are shuffled together.
    pub shuffle_window: usize,
    /// How the stream is read.
    pub stream: StreamingConfig,
    /// The datasets to train on, and how much of each; unset: the run's own.
    pub mix: Vec<MixConfig>,
    /// Steps between two lines of metrics. Between them nothing waits for the device.
    pub log_every: u64,
    /// Address at which the first rank serves its numbers to Prometheus, as in "0.0.0.0:9100"; unset: none.
    pub prometheus: Option<String>,
    /// The phases, in order.
    pub phase: Vec<PhaseConfig>,
    /// Pictures drawn during training.
    pub preview: Option<PreviewConfig>,
    /// The loss on rows that are never trained on; unset: none.
    pub validation: Option<ValidationConfig>,
    /// TFLOP/s that one of the devices can do at most in this precision, as its data sheet says: metrics then have the share that is
    /// reached (MFU).
    pub peak_tflops: Option<f64>,
    /// A profile of a few steps; unset: none.
    pub profile: Option<ProfileConfig>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            global_batch: 256,
            micro_batch: 32,
            freeze: Vec::new(),
            gradient_checkpointing: false,
            cuda_graph: false,
            precision: None,
            norm_precision: None,
            moment_precision: Precision::F32,
            sharding: Sharding::ShardGradOp,
            reduce_precision: Precision::F32,
            bucket_bytes: None,
            not_finite: NotFinite::Stop,
            spike: None,
            health: HealthConfig::default(),
            learning_rate: 1e-4,
            warmup_steps: 1000,
            schedule: LrSchedule::Constant,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
            caption_dropout: 0.1,
            prediction: None,
            zero_terminal_snr: None,
            timesteps: Timesteps::Uniform,
            noise_offset: 0.0,
            min_snr_gamma: None,
            ema: None,
            shuffle_window: 16,
            stream: StreamingConfig::default(),
            mix: Vec::new(),
            log_every: 10,
            prometheus: None,
            phase: Vec::new(),
            preview: None,
            validation: None,
            peak_tflops: None,
            profile: None,
        }
    }
}

/// In what is computed, or something kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bfloat16: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// Single precision.
    F32,
}

/// What each of several ranks has of gradients and optimizer state. Weights are whole on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// Its part, as in FSDP's SHARD_GRAD_OP.
    ShardGradOp,
    /// All of it, as in DDP.
    None,
}

/// `[train.ema]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmaConfig {
    /// Weight of the old average at each step.
    pub decay: f64,
    /// The step (counted over all phases) at which averaging begins, with a copy of the weights.
    pub start_step: u64,
    /// Whether the decay rises to that number, so that the weights that averaging began with are soon forgotten.
    pub warmup: bool,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self { decay: 0.9999, start_step: 0, warmup: true }
    }
}

impl TrainConfig {
    /// Whether step `step`, counted from 0 over all phases, is averaged: how much weight the old average has then. It rises as that
    /// of diffusers' `EMAModel`.
    pub fn averaged_at(&self, step: u64) -> Option<f64> {
        let EmaConfig { decay, start_step, warmup } = self.ema.filter(|ema| step + 1 > ema.start_step)?;
        let before = (step - start_step.min(step)) as f64;
        Some(if warmup { decay.min((1.0 + before) / (10.0 + before)) } else { decay })
    }

    /// Checks what can be checked without a dataset or a model.
    ///
    /// # Errors
    /// Names the key and what it may be.
    pub fn validate(&self) -> Result<(), Error> {
        if self.phase.is_empty() || self.total_steps() == 0 {
            return refuse("train.phase", "give at least one [[train.phase]] with steps > 0");
        }
        self.validate_batches()?;
        let rates = self.phase.iter().filter_map(|p| p.learning_rate).chain([self.learning_rate]);
        for rate in rates {
            if !(rate > 0.0 && rate.is_finite()) {
                return refuse("train.learning_rate", format!("{rate} must be a positive number"));
            }
        }
        if (self.precision, self.norm_precision) == (Some(Precision::F32), Some(Precision::Bf16)) {
            return refuse("train.norm_precision", "norms cannot be bf16 where train.precision is f32");
        }
        if !(0.0..=1.0).contains(&self.caption_dropout) {
            let message = format!("{} must be between 0 and 1", self.caption_dropout);
            return refuse("train.caption_dropout", message);
        }
        if let Some(problem) = self.timesteps.problem() {
            return refuse("train.timesteps", problem);
        }
        if !(self.noise_offset >= 0.0 && self.noise_offset.is_finite()) {
            return refuse("train.noise_offset", format!("{} must be 0 or positive", self.noise_offset));
        }
        if let Some(gamma) = self.min_snr_gamma.filter(|gamma| !(*gamma > 0.0 && gamma.is_finite())) {
            return refuse("train.min_snr_gamma", format!("{gamma} must be a positive number"));
        }
        if let Some(peak) = self.peak_tflops.filter(|peak| !(*peak > 0.0 && peak.is_finite())) {
            return refuse("train.peak_tflops", format!("{peak} must be a positive number"));
        }
        if !(self.max_grad_norm >= 0.0 && self.max_grad_norm.is_finite()) {
            let message = format!("{} must be 0 (no clipping) or positive", self.max_grad_norm);
            return refuse("train.max_grad_norm", message);
        }
        if !(self.weight_decay >= 0.0 && self.weight_decay.is_finite()) {
            return refuse("train.weight_decay", format!("{} must be 0 or positive", self.weight_decay));
        }
        if !(self.eps >= 0.0 && self.eps.is_finite()) {
            return refuse("train.eps", format!("{} must be 0 or positive", self.eps));
        }
        if [self.betas.0, self.betas.1].iter().any(|beta| !(0.0..1.0).contains(beta)) {
            let message = format!("{} and {} must be in [0, 1)", self.betas.0, self.betas.1);
            return refuse("train.betas", message);
        }
        if let Some(ema) = self.ema
            && !(0.0..1.0).contains(&ema.decay)
        {
            return refuse("train.ema.decay", format!("{} must be in [0, 1)", ema.decay));
        }
        if let Some(SpikeConfig { factor, window, .. }) = self.spike
            && !(factor > 1.0 && window > 0)
        {
            let message = format!("factor = {factor} must be above 1, and window = {window} at least 1");
            return refuse("train.spike", message);
        }
        if !(self.health.slower_than > 1.0 && self.health.slower_than.is_finite()) {
            let message = format!("{} must be above 1", self.health.slower_than);
            return refuse("train.health.slower_than", message);
        }
        if self.validation.as_ref().is_some_and(|validation| validation.every == 0 || validation.rows == 0) {
            return refuse("train.validation", "every and rows must be at least 1");
        }
        if self.log_every == 0 || self.shuffle_window == 0 {
            return refuse("train.log_every", "log_every and shuffle_window must be at least 1");
        }
        self.validate_preview()?;
        self.validate_mix()
    }

    fn validate_mix(&self) -> Result<(), Error> {
        let mut names = BTreeSet::new();
        for (i, entry) in self.mix.iter().enumerate() {
            if entry.amount().is_none() {
                let message = format!("give `{}` one of proportion, repeat and count", entry.name);
                return refuse(format!("train.mix.{i}"), message);
            }
            if !names.insert(&entry.name) {
                return refuse(format!("train.mix.{i}.name"), format!("`{}` is there twice", entry.name));
            }
        }
        for (i, phase) in self.phase.iter().enumerate() {
            let unknown = phase.mix.iter().flat_map(BTreeMap::keys).find(|name| !names.contains(name));
            if let Some(name) = unknown {
                let message = format!("`{name}` is none of the names in [[train.mix]]");
                return refuse(format!("train.phase.{i}.mix"), message);
            }
        }
        Ok(())
    }
}

fn refuse(key: impl Into<String>, message: impl Into<String>) -> Result<(), Error> {
    Err(Error::config(key, message))
}

#[cfg(test)]
mod tests {
    use tidemill_store::stream::MixAmount;

    use super::*;

    fn two_phases() -> TrainConfig {
        let phase = |resolution, steps| PhaseConfig { steps, ..PhaseConfig::at(resolution) };
        TrainConfig { warmup_steps: 4, phase: vec![phase(256, 10), phase(512, 5)], ..TrainConfig::default() }
    }

    #[test]
    fn averages_forget_what_they_began_with() {
        let at = |ema, step| TrainConfig { ema: Some(ema), ..TrainConfig::default() }.averaged_at(step);
        let ema = EmaConfig { decay: 0.9, start_step: 5, warmup: true };
        assert_eq!(at(ema, 4), None);
        // As diffusers' EMAModel, which copies the weights at its first step.
        assert_eq!(
            [6, 7, 15, 86].map(|step| at(ema, step)),
            [2.0 / 11.0, 3.0 / 12.0, 11.0 / 20.0, 0.9].map(Some)
        );
        assert_eq!(at(EmaConfig { warmup: false, ..ema }, 6), Some(0.9));
    }

    #[test]
    fn nonsense_is_refused_by_key() {
        let phase = two_phases().phase;
        let good = || TrainConfig { phase: phase.clone(), ..TrainConfig::default() };
        assert!(good().validate().is_ok());
        let mixed = |name: &str, repeat, proportion| {
            let (name, dataset, count) = (name.to_owned(), None, None);
            MixConfig { name, dataset, proportion, repeat, count }
        };
        let of = |name: &str| PhaseConfig {
            mix: Some([(name.into(), MixAmount::Count(5))].into()),
            ..phase[0].clone()
        };
        let two = vec![mixed("a", Some(1.0), None), mixed("b", Some(2.0), None)];
        let good_mix = TrainConfig { mix: two.clone(), phase: vec![of("b"), phase[1].clone()], ..good() };
        assert!(good_mix.validate().is_ok());
        let shares = |i: usize| good_mix.stream_phase(i).mix.into_iter().collect::<Vec<_>>();
        assert_eq!(shares(0), [("b".into(), MixAmount::Count(5))]);
        assert_eq!(shares(1), [("a".into(), MixAmount::Repeat(1.0)), ("b".into(), MixAmount::Repeat(2.0))]);
        for (config, key) in [
            (TrainConfig { phase: Vec::new(), ..good() }, "train.phase"),
            (TrainConfig { micro_batch: 512, ..good() }, "train.micro_batch"),
            (TrainConfig { micro_batch: 0, ..good() }, "train.micro_batch"),
            (
                TrainConfig {
                    phase: vec![PhaseConfig { global_batch: Some(16), ..phase[0].clone() }],
                    ..good()
                },
                "train.phase.0.micro_batch",
            ),
            (TrainConfig { learning_rate: f64::NAN, ..good() }, "train.learning_rate"),
            (
                TrainConfig {
                    precision: Some(Precision::F32),
                    norm_precision: Some(Precision::Bf16),
                    ..good()
                },
                "train.norm_precision",
            ),
            (TrainConfig { caption_dropout: 1.5, ..good() }, "train.caption_dropout"),
            (TrainConfig { weight_decay: -0.1, ..good() }, "train.weight_decay"),
            (TrainConfig { eps: f64::NAN, ..good() }, "train.eps"),
            (TrainConfig { betas: (0.9, 1.0), ..good() }, "train.betas"),
            (TrainConfig { noise_offset: f64::NAN, ..good() }, "train.noise_offset"),
            (TrainConfig { min_snr_gamma: Some(0.0), ..good() }, "train.min_snr_gamma"),
            (TrainConfig { peak_tflops: Some(f64::NAN), ..good() }, "train.peak_tflops"),
            (
                TrainConfig { timesteps: Timesteps::LogitNormal { mean: 0.0, std: 0.0 }, ..good() },
                "train.timesteps",
            ),
            (TrainConfig { max_grad_norm: -1.0, ..good() }, "train.max_grad_norm"),
            (
                TrainConfig {
                    validation: Some(ValidationConfig { rows: 0, ..ValidationConfig::default() }),
                    ..good()
                },
                "train.validation",
            ),
            (TrainConfig { mix: vec![mixed("a", Some(1.0), Some(1.0))], ..good() }, "train.mix.0"),
            (TrainConfig { mix: vec![two[0].clone(), two[0].clone()], ..good() }, "train.mix.1.name"),
            (TrainConfig { phase: vec![of("c")], mix: two.clone(), ..good() }, "train.phase.0.mix"),
            (
                TrainConfig { spike: Some(SpikeConfig { factor: 0.5, ..SpikeConfig::default() }), ..good() },
                "train.spike",
            ),
            (
                TrainConfig { ema: Some(EmaConfig { decay: 1.0, ..EmaConfig::default() }), ..good() },
                "train.ema.decay",
            ),
            (
                TrainConfig {
                    preview: Some(PreviewConfig { guidance: f64::NAN, ..PreviewConfig::default() }),
                    ..good()
                },
                "train.preview.guidance",
            ),
        ] {
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(key), "{message}");
        }
    }
}
