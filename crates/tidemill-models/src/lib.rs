//! Stable Diffusion's networks on libtorch: the VAE ([`AutoencoderKl`]), the CLIP text encoder
//! ([`ClipTextModel`]), the U-Net ([`UNet2DConditionModel`]) and SD3's transformer
//! ([`SD3Transformer2DModel`]), noise schedules and samplers. They
//! read and write the diffusers folder layout under diffusers' own parameter names: a real
//! `stable-diffusion-2-base` folder opens, and what is trained here opens in diffusers.
//!
//! The networks that judge images are here, too: [`ClipModel`], [`Dinov2Model`] and
//! [`FidInceptionV3`].
//!
//! Forward passes use `tch`'s panicking operators, because they fail only if memory runs out or an
//! input has the wrong shape. Wrap the whole step or batch in [`tidemill_torch::guard`].

mod activations;
mod clip;
mod denoiser;
mod denoiser_config;
mod dinov2;
mod error;
mod gradient_checkpointing;
mod inception;
mod layers;
mod mmdit;
mod model_folder;
mod params;
pub mod sampler;
mod schedule;
mod score_head;
mod shard_units;
mod text_encoder;
mod unet;
mod vae;

pub use activations::Activations;
pub use clip::{ClipConfig, ClipModel, ClipVisionConfig};
pub use denoiser::{Conditions, Denoiser, SampleShape, TrainableDenoiser};
pub use denoiser_config::DenoiserConfig;
pub use dinov2::{Dinov2Config, Dinov2Model};
pub use error::Error;
pub use gradient_checkpointing::GradientCheckpointing;
pub use inception::{FidInceptionV3, INCEPTION_FEATURES, INCEPTION_SIZE};
pub use mmdit::{QkNorm, SD3Transformer2DModel, SD3TransformerConfig};
pub use model_folder::{
    ModelFolder, TextEncoderFolders, Variant, check_weights, compute_digest, load_weights, save_weights,
};
pub use params::{ParamInit, Params};
pub use schedule::{
    BetaSchedule, DynamicShift, EdmConfig, FlowShift, NoiseLevels, NoiseSchedule, PredictionType,
    SchedulerConfig, SchedulerForm, SigmaSchedule, TimestepSpacing,
};
pub use score_head::{HeadActivation, HeadOutput, ScoreHead};
pub use shard_units::{ShardHooks, ShardUnits};
pub use text_encoder::{
    ClipTextConfig, ClipTextModel, ClipTextOutput, FeedForwardProj, T5Config, T5EncoderModel, TextEncoders,
    TextJoin, TextStates, TextWidths,
};
pub use unet::{AdditionEmbedType, UNet2DConditionModel, UNetConfig};
pub use vae::{AutoencoderKl, LatentScale, VaeConfig};
