//! The text encoders of Stable Diffusion (transformers' CLIPTextModel, with or without a projection): token ids
//! to hidden states and pooled output.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::config::ClipTextConfig;
use super::transformer::TextTransformer;
use crate::Error;
use crate::layers::Linear;
use crate::model_folder::weight_files::TRANSFORMERS_FILE;
use crate::model_folder::weights;
use crate::params::{ParamInit, Params};

/// Stable Diffusion's text encoder.
#[derive(Debug)]
pub struct ClipTextModel {
    config: ClipTextConfig,
    params: Params,
    transformer: TextTransformer,
    text_projection: Option<Linear>,
}

/// What SDXL takes of a text encoder.
#[derive(Debug)]
pub struct ClipTextOutput {
    /// The hidden state before the last layer [N, L, D], without the final norm.
    pub penultimate: Tensor,
    /// The projected last hidden state at the end of each text [N, P]; `None` without a projection.
    pub pooled: Option<Tensor>,
}

impl ClipTextModel {
    /// A text encoder on `device` in f32.
    pub fn new(config: ClipTextConfig, device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        // The names in all published Stable Diffusion folders. transformers 5 omits `text_model.`;
        // `load_weights` accepts both.
        let transformer = TextTransformer::new(params.root().child("text_model"), &config);
        let projection = |width| {
            Linear::new_without_bias(params.root().child("text_projection"), config.hidden_size, width)
        };
        let text_projection = config.projection_dim.map(projection);
        Self { config, params, transformer, text_projection }
    }

    /// Opens a `text_encoder/` folder; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self, Error> {
        let config = ClipTextConfig::read(&dir.join("config.json"))?;
        let build = || Self::new(config, device, ParamInit::Empty);
        weights::load_frozen(build, Self::params, dir, kind)
    }

    /// Writes a `text_encoder/` folder that transformers opens.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.config.write(&dir.join("config.json"))?;
        weights::save_weights(&self.params.named_parameters(), &dir.join(TRANSFORMERS_FILE))
    }

    /// Encodes token ids [N, L] (i64) to the last hidden state [N, L, D], behind the final layer
    /// norm. Attention is causal and padding is not masked, as Stable Diffusion was trained.
    pub fn forward(&self, ids: &Tensor) -> Tensor {
        self.transformer.forward(ids)
    }

    /// Encodes token ids [N, L] (i64) as SDXL does. Attention is as in [`Self::forward`].
    pub fn forward_penultimate(&self, ids: &Tensor) -> ClipTextOutput {
        let penultimate = self.transformer.forward_penultimate(ids);
        let pool = |projection: &Linear| {
            let last = self.transformer.finish(&penultimate);
            projection.forward(&self.transformer.pool(&last, ids))
        };
        let pooled = self.text_projection.as_ref().map(pool);
        ClipTextOutput { penultimate, pooled }
    }

    /// The configuration.
    pub fn config(&self) -> &ClipTextConfig {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}
