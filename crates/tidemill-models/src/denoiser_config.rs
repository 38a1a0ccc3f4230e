//! The network that a model folder describes: a U-Net in `unet/`, or Stable Diffusion 3's transformer in
//! `transformer/`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::Device;

use crate::denoiser::TrainableDenoiser;
use crate::error::Error;
use crate::mmdit::{SD3Transformer2DModel, SD3TransformerConfig};
use crate::model_folder::ModelFolder;
use crate::model_folder::weights::load_weights;
use crate::params::ParamInit;
use crate::text_encoder::TextJoin;
use crate::unet::{UNet2DConditionModel, UNetConfig};

/// The configuration of a folder's network.
#[derive(Clone, Debug, PartialEq)]
pub enum DenoiserConfig {
    /// Stable Diffusion 1, 2 or XL.
    UNet(UNetConfig),
    /// Stable Diffusion 3.
    SD3Transformer(SD3TransformerConfig),
}

impl DenoiserConfig {
    /// Reads the configuration of a folder's network.
    ///
    /// # Errors
    /// If it is malformed, inconsistent, or names an option that is not supported.
    pub fn read(models: &ModelFolder) -> Result<Self, Error> {
        let path = models.denoiser().join("config.json");
        match models.has_transformer() {
            true => SD3TransformerConfig::read(&path).map(Self::SD3Transformer),
            false => UNetConfig::read(&path).map(Self::UNet),
        }
    }

    /// Writes `config.json` as diffusers reads it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        match self {
            Self::UNet(config) => config.write(path),
            Self::SD3Transformer(config) => config.write(path),
        }
    }

    /// The network on `device` in f32.
    ///
    /// # Errors
    /// If the configuration is inconsistent, or memory does not suffice.
    pub fn build(&self, device: Device, init: ParamInit) -> Result<Box<dyn TrainableDenoiser>, Error> {
        Ok(match self.clone() {
            Self::UNet(config) => Box::new(UNet2DConditionModel::new(config, device, init)?),
            Self::SD3Transformer(config) => Box::new(SD3Transformer2DModel::new(config, device, init)?),
        })
    }

    /// The network on `device` in f32, with the weights of a folder.
    ///
    /// # Errors
    /// If there are no weights, or they do not fit.
    pub fn load(&self, models: &ModelFolder, device: Device) -> Result<Box<dyn TrainableDenoiser>, Error> {
        let network = self.build(device, ParamInit::Empty)?;
        load_weights(network.params(), &models.denoiser())?;
        Ok(network)
    }

    /// The subfolder of a model folder, and the class of diffusers.
    pub fn part_and_class(&self) -> (&'static str, &'static str) {
        match self {
            Self::UNet(_) => ("unet", "UNet2DConditionModel"),
            Self::SD3Transformer(_) => ("transformer", "SD3Transformer2DModel"),
        }
    }

    /// What tells the network from others in checkpoints, as [`TrainableDenoiser::identity`].
    pub fn identity(&self) -> (&'static str, Value) {
        let config = match self {
            Self::UNet(config) => serde_json::to_value(config),
            Self::SD3Transformer(config) => serde_json::to_value(config),
        };
        (self.part_and_class().0, config.unwrap_or_default())
    }

    /// Whether it takes [time ids](crate::Conditions::time_ids).
    pub fn takes_time_ids(&self) -> bool {
        matches!(self, Self::UNet(config) if config.takes_time_ids())
    }

    /// How it takes the text of several encoders. `t5_tokens` counts where it takes those of T5.
    pub fn text_join(&self, t5_tokens: i64) -> TextJoin {
        match self {
            Self::UNet(_) => TextJoin::SideBySide,
            Self::SD3Transformer(config) => TextJoin::Padded { width: config.joint_attention_dim, t5_tokens },
        }
    }

    /// The side of latents that it was made for: 64 if a U-Net names none, as diffusers' pipelines assume.
    pub fn sample_size(&self) -> i64 {
        match self {
            Self::UNet(config) => config.sample_size.unwrap_or(64),
            Self::SD3Transformer(config) => config.sample_size,
        }
    }
}

impl ModelFolder {
    /// Whether the network is a transformer in `transformer/` and not a U-Net in `unet/`.
    pub fn has_transformer(&self) -> bool {
        self.path().join("transformer/config.json").is_file()
    }

    /// The folder of the network that predicts noise: `transformer/` or `unet/`.
    pub fn denoiser(&self) -> PathBuf {
        if self.has_transformer() { self.path().join("transformer") } else { self.unet() }
    }
}
