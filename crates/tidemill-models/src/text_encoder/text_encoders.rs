//! The text encoders of a model folder: one in Stable Diffusion 1.x and 2.x, two in SDXL, and T5 as a third in Stable
//! Diffusion 3.

use tch::{Device, Kind, Tensor};

use super::config::ClipTextConfig;
use super::model::{ClipTextModel, ClipTextOutput};
use super::t5_config::T5Config;
use super::t5_model::T5EncoderModel;
use crate::Error;
use crate::denoiser::Conditions;
use crate::model_folder::{ModelFolder, TextEncoderFolders};

/// The frozen text encoders of a model folder, in order.
#[derive(Debug)]
pub struct TextEncoders(Vec<TextEncoder>);

/// A text encoder.
#[derive(Debug)]
enum TextEncoder {
    Clip(ClipTextModel),
    T5(T5EncoderModel),
}

/// What one text encoder gives for captions.
#[derive(Debug)]
pub struct TextStates {
    /// Hidden states [N, L, D]. A single CLIP encoder gives those of its last layer, behind the final norm; of
    /// several, each gives those before its last layer, as SDXL does. T5 gives those of its last layer.
    pub hidden: Tensor,
    /// The pooled output [N, P] of one of several encoders, if it has a projection.
    pub pooled: Option<Tensor>,
}

/// Widths of what one text encoder gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWidths {
    /// Of the hidden states.
    pub hidden: i64,
    /// Of the pooled output, if there is one.
    pub pooled: Option<i64>,
}

impl TextEncoders {
    /// Opens the text encoders of a folder; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If a configuration is not supported or the weights do not fit it.
    pub fn load(models: &ModelFolder, device: Device, kind: Kind) -> Result<Self, Error> {
        let load = |folder: &TextEncoderFolders| match T5Config::is_t5(&folder.encoder)? {
            true => T5EncoderModel::load(&folder.encoder, device, kind).map(TextEncoder::T5),
            false => ClipTextModel::load(&folder.encoder, device, kind).map(TextEncoder::Clip),
        };
        models.text_encoders()?.iter().map(load).collect::<Result<_, _>>().map(Self)
    }

    /// Number of encoders.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Widths of what each encoder gives.
    pub fn widths(&self) -> Vec<TextWidths> {
        let is_single = self.count() == 1;
        let widths = |encoder: &TextEncoder| match encoder {
            TextEncoder::Clip(model) => TextWidths::of_clip(model.config(), is_single),
            TextEncoder::T5(model) => TextWidths::of_t5(model.config()),
        };
        self.0.iter().map(widths).collect()
    }

    /// Encodes token ids [N, L] (i64) with one encoder, counted from 0.
    ///
    /// # Panics
    /// If there is no such encoder, or libtorch fails.
    pub fn encode(&self, encoder: usize, ids: &Tensor) -> TextStates {
        match &self.0[encoder] {
            TextEncoder::T5(model) => TextStates { hidden: model.forward(ids), pooled: None },
            TextEncoder::Clip(model) if self.count() == 1 => {
                TextStates { hidden: model.forward(ids), pooled: None }
            }
            TextEncoder::Clip(model) => {
                let ClipTextOutput { penultimate, pooled } = model.forward_penultimate(ids);
                TextStates { hidden: penultimate, pooled }
            }
        }
    }
}

impl ModelFolder {
    /// Widths of what each text encoder gives. Reads the configurations only.
    ///
    /// # Errors
    /// If a configuration is not supported.
    pub fn text_widths(&self) -> Result<Vec<TextWidths>, Error> {
        let folders = self.text_encoders()?;
        let read = |folder: &TextEncoderFolders| {
            let path = folder.encoder.join("config.json");
            match T5Config::is_t5(&folder.encoder)? {
                true => Ok(TextWidths::of_t5(&T5Config::read(&path)?)),
                false => Ok(TextWidths::of_clip(&ClipTextConfig::read(&path)?, folders.len() == 1)),
            }
        };
        folders.iter().map(read).collect()
    }
}

impl TextWidths {
    fn of_clip(config: &ClipTextConfig, is_single: bool) -> Self {
        Self { hidden: config.hidden_size, pooled: config.projection_dim.filter(|_| !is_single) }
    }

    fn of_t5(config: &T5Config) -> Self {
        Self { hidden: config.d_model, pooled: None }
    }
}

impl TextStates {
    /// Conditions for drawing images of this height and width, in this dtype: whole images, as SDXL's pipeline
    /// draws by default.
    pub fn to_conditions(&self, kind: Kind, [height, width]: [u32; 2]) -> Conditions {
        let (n, device) = (self.hidden.size()[0], self.hidden.device());
        let sizes = [height, width, 0, 0, height, width].map(|size| size as f32);
        let time_ids = || Tensor::from_slice(&sizes).to_device(device).expand([n, 6], true);
        Conditions {
            text: self.hidden.to_kind(kind),
            pooled: self.pooled.as_ref().map(|pooled| pooled.to_kind(kind)),
            time_ids: self.pooled.as_ref().map(|_| time_ids()),
        }
    }
}
