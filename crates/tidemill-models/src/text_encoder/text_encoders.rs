//! The text encoders of a model folder: one in Stable Diffusion 1.x and 2.x, two in SDXL.

use tch::{Device, Kind, Tensor};

use super::config::ClipTextConfig;
use super::model::{ClipTextModel, ClipTextOutput};
use crate::Error;
use crate::denoiser::Conditions;
use crate::model_folder::ModelFolder;

/// The frozen text encoders of a model folder, in order.
#[derive(Debug)]
pub struct TextEncoders(Vec<ClipTextModel>);

/// What one text encoder gives for captions.
#[derive(Debug)]
pub struct TextStates {
    /// Hidden states [N, L, D]. A single encoder gives those of its last layer, behind the final norm; of several,
    /// each gives those before its last layer, as SDXL does.
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
        let folders = models.text_encoders()?;
        folders
            .iter()
            .map(|folder| ClipTextModel::load(&folder.encoder, device, kind))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Number of encoders.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Widths of what each encoder gives.
    pub fn widths(&self) -> Vec<TextWidths> {
        widths_of(self.0.iter().map(ClipTextModel::config))
    }

    /// Encodes token ids [N, L] (i64) with one encoder, counted from 0.
    ///
    /// # Panics
    /// If there is no such encoder, or libtorch fails.
    pub fn encode(&self, encoder: usize, ids: &Tensor) -> TextStates {
        let model = &self.0[encoder];
        if self.count() == 1 {
            return TextStates { hidden: model.forward(ids), pooled: None };
        }
        let ClipTextOutput { penultimate, pooled } = model.forward_penultimate(ids);
        TextStates { hidden: penultimate, pooled }
    }
}

impl ModelFolder {
    /// Widths of what each text encoder gives. Reads the configurations only.
    ///
    /// # Errors
    /// If a configuration is not supported.
    pub fn text_widths(&self) -> Result<Vec<TextWidths>, Error> {
        let read = |encoder: &std::path::Path| ClipTextConfig::read(&encoder.join("config.json"));
        let configs: Vec<_> =
            self.text_encoders()?.iter().map(|folder| read(&folder.encoder)).collect::<Result<_, _>>()?;
        Ok(widths_of(configs.iter()))
    }
}

fn widths_of<'a>(configs: impl ExactSizeIterator<Item = &'a ClipTextConfig>) -> Vec<TextWidths> {
    let is_single = configs.len() == 1;
    let widths = |config: &ClipTextConfig| TextWidths {
        hidden: config.hidden_size,
        pooled: config.projection_dim.filter(|_| !is_single),
    };
    configs.map(widths).collect()
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
