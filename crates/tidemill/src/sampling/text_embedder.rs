//! Prompts to text embeddings.

use tch::{Device, Kind, Tensor};
use tidemill_data::ClipTokenizer;
use tidemill_models::{ClipTextModel, ModelFolder};
use tidemill_torch::guard;

use crate::error::Result;

/// The tokenizer and the text encoder.
pub struct TextEmbedder {
    tokenizer: ClipTokenizer,
    text_encoder: ClipTextModel,
    device: Device,
}

impl TextEmbedder {
    /// Loads the tokenizer and the text encoder (f32).
    ///
    /// # Errors
    /// If a part is missing or not supported.
    pub fn load(models: &ModelFolder, device: Device) -> Result<Self> {
        Ok(Self {
            tokenizer: ClipTokenizer::open(&models.tokenizer())?,
            text_encoder: ClipTextModel::load(&models.text_encoder(), device, Kind::Float)?,
            device,
        })
    }

    /// Computes the embeddings of the prompts: [N, 77, D], f32.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn embed(&self, prompts: &[String]) -> Result<Tensor> {
        let mut ids = Vec::new();
        for prompt in prompts {
            ids.extend(self.tokenizer.encode(prompt).map(i64::from));
        }
        let rows = prompts.len() as i64;
        let forward = || {
            let ids = Tensor::from_slice(&ids).view([rows, -1]).to_device(self.device);
            tch::no_grad(|| self.text_encoder.forward(&ids))
        };
        guard(forward).map_err(|e| tidemill_models::Error::from(e).into())
    }
}
