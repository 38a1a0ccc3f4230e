//! The VAE of Stable Diffusion (diffusers' AutoencoderKL): images to the moments of their latents,
//! and latents to images.

use std::path::Path;

use tch::{Device, Kind, Tensor};
use tidemill_torch::to_preferred_memory_format;

use super::config::VaeConfig;
use super::networks::{Decoder, Encoder};
use crate::Error;
use crate::layers::{Conv2d, unwrap_or_panic};
use crate::model_folder::weight_files::DIFFUSERS_FILE;
use crate::model_folder::weights;
use crate::params::{ParamInit, Params};

/// Stable Diffusion's VAE.
#[derive(Debug)]
pub struct AutoencoderKl {
    config: VaeConfig,
    params: Params,
    encoder: Encoder,
    decoder: Decoder,
    quant_conv: Option<Conv2d>,
    post_quant_conv: Option<Conv2d>,
}

impl AutoencoderKl {
    /// A VAE on `device` in f32.
    pub fn new(config: VaeConfig, device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        let scope = params.root();
        let channels = config.latent_channels;
        Self {
            encoder: Encoder::new(scope.child("encoder"), &config),
            decoder: Decoder::new(scope.child("decoder"), &config),
            quant_conv: config
                .use_quant_conv
                .then(|| Conv2d::new_1x1(scope.child("quant_conv"), 2 * channels, 2 * channels)),
            post_quant_conv: config
                .use_post_quant_conv
                .then(|| Conv2d::new_1x1(scope.child("post_quant_conv"), channels, channels)),
            config,
            params,
        }
    }

    /// Opens a `vae/` folder; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self, Error> {
        let config = VaeConfig::read(&dir.join("config.json"))?;
        let build = || Self::new(config, device, ParamInit::Empty);
        weights::load_frozen(build, Self::params, dir, kind)
    }

    /// Writes a `vae/` folder that diffusers' `AutoencoderKL.from_pretrained` opens.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.config.write(&dir.join("config.json"))?;
        weights::save_weights(&self.params.named_parameters(), &dir.join(DIFFUSERS_FILE))
    }

    /// Encodes images [N, 3, H, W] in [-1, 1] to moments [N, 2 C, H/d, W/d]: the mean and then the
    /// log-variance of the latents, *unscaled*.
    pub fn encode(&self, images: &Tensor) -> Tensor {
        let h = self.encoder.forward(&unwrap_or_panic(to_preferred_memory_format(images)));
        self.quant_conv.as_ref().map_or_else(|| h.shallow_clone(), |conv| conv.forward(&h))
    }

    /// Decodes unscaled latents [N, C, h, w] to images [N, 3, h d, w d], nominally in [-1, 1].
    pub fn decode(&self, latents: &Tensor) -> Tensor {
        let latents = unwrap_or_panic(to_preferred_memory_format(latents));
        match &self.post_quant_conv {
            Some(conv) => self.decoder.forward(&conv.forward(&latents)),
            None => self.decoder.forward(&latents),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}
