//! `[train]`: the table itself, its defaults, and what follows for each phase and step.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tidemill_models::{EdmConfig, FlowShift, GradientCheckpointing, PredictionType};
use tidemill_plan::memory::Sharding;
use tidemill_store::stream::Phase;

use super::anomaly::{NonFiniteAction, SpikeConfig};
use super::caption_dropout::CaptionDropout;
use super::cuda_graph::CudaGraphMode;
use super::ema::EmaConfig;
use super::health_check::HealthCheckConfig;
use super::lr_schedule::LrSchedule;
use super::mix::MixConfig;
use super::phase::PhaseConfig;
use super::precision::Precision;
use super::preview::PreviewConfig;
use super::profile::ProfileConfig;
use super::streaming::StreamingConfig;
use super::timestep_sampling::TimestepSampling;
use super::validation::ValidationConfig;

/// `[train]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Samples per optimizer step.
    pub global_batch: usize,
    /// Samples per forward and backward pass. Gradients are accumulated over the micro-batches of a
    /// step.
    pub micro_batch: usize,
    /// Patterns for the names of frozen parameters, as in `["down_blocks.*", "*.attn1.*"]`:
    /// `*` stands for any text, `?` for one character.
    pub freeze: Vec<String>,
    /// What the backward pass computes again, so that it takes less memory.
    pub gradient_checkpointing: GradientCheckpointing,
    /// When a step on a GPU is recorded once as a CUDA graph and then replayed, so that the GPU
    /// does not wait for the host between kernels.
    pub cuda_graph: CudaGraphMode,
    /// Whether all operations on a GPU give the same bits each time, so that a run that is killed and resumed
    /// equals one that is not. On a CPU they always do.
    pub deterministic: bool,
    /// How many algorithms cuDNN tries for each convolution in the first step; 0 tries all.
    pub cudnn_benchmark_limit: usize,
    /// Precision of the forward and backward pass. Unset: bf16 if the devices of all ranks support
    /// it, else f32. Master weights are f32 in either case.
    pub precision: Option<Precision>,
    /// Precision of group and layer normalisation. Unset: as `precision`. In bf16 only means and
    /// variances are f32.
    pub norm_precision: Option<Precision>,
    /// Precision in which AdamW's moments are stored. bf16 takes half the memory; values are then
    /// rounded stochastically, so that they are right on average.
    pub moment_precision: Precision,
    /// How gradients and optimizer state are sharded over the ranks.
    pub sharding: Sharding,
    /// Precision in which gradients are sent between ranks.
    pub reduce_precision: Precision,
    /// Bytes of a gradient bucket, in which gradients and weights are communicated. Unset: an
    /// eighth of the gradients, at least 1 MiB and at most 32 MiB.
    pub bucket_bytes: Option<ByteSize>,
    /// What the run does about a step whose loss or gradient is not finite.
    pub not_finite: NonFiniteAction,
    /// What the run does about a step whose loss is far above those before it. Unset: nothing.
    pub spike: Option<SpikeConfig>,
    /// The check of all ranks before the first step.
    pub health: HealthCheckConfig,
    /// Learning rate after warm-up, unless a phase overrides it.
    pub learning_rate: f64,
    /// Steps over which the learning rate rises from 0.
    pub warmup_steps: u64,
    /// How the learning rate changes after warm-up.
    pub schedule: LrSchedule,
    /// Decay rates of AdamW's moments.
    pub betas: (f64, f64),
    /// AdamW's epsilon.
    pub eps: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global norm of the gradients. 0 switches clipping off.
    pub max_grad_norm: f64,
    /// Share of the samples whose caption is replaced by the empty one, drawn anew every epoch; or a share for
    /// each text encoder.
    pub caption_dropout: CaptionDropout,
    /// What the U-Net predicts. Unset: as in the model's scheduler.
    pub prediction: Option<PredictionType>,
    /// Rescales the noise schedule so that its last timestep is pure noise. Unset: as in the
    /// model's scheduler.
    pub zero_terminal_snr: Option<bool>,
    /// Shift of the noise levels of rectified flow, fixed or by the size of the image: above 1 there is more noise,
    /// as images of more pixels need (Esser et al., *Scaling Rectified Flow Transformers*, 2024, section 5.3.2; 3 in
    /// SD3). Unset: as in the model's scheduler.
    pub flow_shift: Option<FlowShift>,
    /// Preconditions the network as EDM does (Karras et al., 2022). Unset: as in the model's scheduler.
    pub edm: Option<EdmConfig>,
    /// How timesteps are sampled.
    pub timesteps: TimestepSampling,
    /// Adds to the noise of each sample and channel one normal number times this, so that the model
    /// learns to draw images that are darker or brighter as a whole (`noise_offset` of diffusers'
    /// scripts).
    pub noise_offset: f64,
    /// Weights the loss of each sample by min(SNR, gamma), divided by the weight that the
    /// prediction type implies, so that timesteps with little noise do not dominate (Hang et al.,
    /// *Efficient Diffusion Training via Min-SNR Weighting*, 2023; 5 is usual). Unset: all
    /// timesteps weigh the same.
    pub min_snr_gamma: Option<f64>,
    /// Exponential moving average of the weights. Unset: none.
    pub ema: Option<EmaConfig>,
    /// Blocks of a dataset and bucket that are shuffled together.
    pub shuffle_window: usize,
    /// How the stream is read.
    pub stream: StreamingConfig,
    /// The datasets to train on, and how much of each. Unset: the run's own.
    pub mix: Vec<MixConfig>,
    /// Steps between two lines of metrics. In between, nothing waits for the device.
    pub log_every: u64,
    /// Address at which the first rank serves metrics to Prometheus, as in "0.0.0.0:9100". Unset:
    /// none.
    pub prometheus: Option<String>,
    /// The phases, in order.
    pub phase: Vec<PhaseConfig>,
    /// Preview images drawn during training. Unset: none.
    pub preview: Option<PreviewConfig>,
    /// The loss on the validation set. Unset: none.
    pub validation: Option<ValidationConfig>,
    /// Peak TFLOP/s of one device in this precision, from its data sheet. With it, metrics have the
    /// share that is reached (model FLOPs utilisation, MFU).
    pub peak_tflops: Option<f64>,
    /// A profile of a few steps. Unset: none.
    pub profile: Option<ProfileConfig>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            global_batch: 256,
            micro_batch: 32,
            freeze: Vec::new(),
            gradient_checkpointing: GradientCheckpointing::Off,
            cuda_graph: CudaGraphMode::default(),
            deterministic: false,
            // PyTorch's.
            cudnn_benchmark_limit: 10,
            precision: None,
            norm_precision: None,
            moment_precision: Precision::F32,
            sharding: Sharding::ShardGradOp,
            reduce_precision: Precision::F32,
            bucket_bytes: None,
            not_finite: NonFiniteAction::Stop,
            spike: None,
            health: HealthCheckConfig::default(),
            learning_rate: 1e-4,
            warmup_steps: 1000,
            schedule: LrSchedule::Constant,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
            caption_dropout: CaptionDropout::All(0.1),
            prediction: None,
            zero_terminal_snr: None,
            flow_shift: None,
            edm: None,
            timesteps: TimestepSampling::Uniform,
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

impl TrainConfig {
    /// Steps of all phases together.
    pub fn total_steps(&self) -> u64 {
        self.phase.iter().map(|p| p.steps).sum()
    }

    /// The index and the first step of the phase that `step`, counted from 0 over all phases,
    /// belongs to; `None` after the last phase.
    pub fn phase_at(&self, step: u64) -> Option<(usize, u64)> {
        let mut first = 0;
        for (index, phase) in self.phase.iter().enumerate() {
            if step < first + phase.steps {
                return Some((index, first));
            }
            first += phase.steps;
        }
        None
    }

    /// Samples per optimizer step of a phase.
    pub fn phase_global_batch(&self, phase: usize) -> usize {
        self.phase[phase].global_batch.unwrap_or(self.global_batch)
    }

    /// Samples per forward and backward pass of a phase.
    pub fn phase_micro_batch(&self, phase: usize) -> usize {
        self.phase[phase].micro_batch.unwrap_or(self.micro_batch)
    }

    /// The most micro-batches in a step of a phase that any of so many ranks has.
    pub fn phase_micro_batches(&self, phase: usize, ranks: usize) -> usize {
        self.phase_global_batch(phase).div_ceil(ranks).div_ceil(self.phase_micro_batch(phase))
    }

    /// The stream's settings for a phase: resolution, global batch and mix.
    pub fn stream_phase(&self, index: usize) -> Phase {
        let PhaseConfig { resolution, mix, .. } = &self.phase[index];
        let mut phase = Phase::single_dataset(*resolution, self.phase_global_batch(index) as u64);
        if let Some(mix) = mix {
            phase.mix.clone_from(mix);
        } else if !self.mix.is_empty() {
            let amounts = self.mix.iter().filter_map(|entry| Some((entry.name.clone(), entry.amount()?)));
            phase.mix = amounts.collect();
        }
        phase
    }

    /// The EMA decay of `step`, counted from 0 over all phases; `None` if weights are not averaged
    /// at that step.
    pub fn ema_decay_at(&self, step: u64) -> Option<f64> {
        self.ema?.decay_at(step)
    }
}
