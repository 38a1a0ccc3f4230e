//! Stable Diffusion's networks on libtorch: the VAE ([`AutoencoderKl`]), the CLIP text encoder
//! ([`ClipTextModel`]), the U-Net ([`UNet2DConditionModel`]), noise schedules and samplers. They read
//! and write the diffusers folder layout under diffusers' own parameter names, so a real
//! `stable-diffusion-2-base` folder opens, and what is trained here opens in diffusers.
//!
//! Forward passes use `tch`'s panicking operators, for they only fail on out of memory or on inputs
//! of the wrong shape: wrap the whole step or batch in [`tidemill_torch::guard`].

mod attention;
mod clip;
mod config;
mod denoiser;
mod error;
mod flops;
mod folder;
mod layers;
mod params;
mod resnet;
pub mod sampler;
mod schedule;
mod unet;
mod unet_blocks;
mod unet_config;
mod vae;
mod weights;

pub use clip::{ClipTextConfig, ClipTextModel};
pub use denoiser::{Denoiser, SampleShape, TrainableDenoiser};
pub use error::Error;
pub use folder::{ModelFolder, compute_digest};
pub use params::{ParamInit, Params};
pub use schedule::{BetaSchedule, NoiseSchedule, PredictionType, SchedulerConfig, TimestepSpacing};
pub use unet::UNet2DConditionModel;
pub use unet_config::UNetConfig;
pub use vae::{AutoencoderKl, VaeConfig};
pub use weights::{check_weights, load_weights, save_weights};
