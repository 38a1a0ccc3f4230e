//! Prompts to text embeddings.

use tch::{Device, Kind, Tensor};
use tidemill_models::{ModelFolder, TextEncoders, TextJoin, TextStates};
use tidemill_torch::guard;

use crate::encode::{SharedTokenizer, open_tokenizers};
use crate::error::Result;
use crate::run_file::Run;

/// The tokenizers and the text encoders.
pub struct TextEmbedder {
    tokenizers: Vec<SharedTokenizer>,
    text_encoders: TextEncoders,
    /// How the network takes the text of several encoders.
    join: TextJoin,
    device: Device,
}

impl TextEmbedder {
    /// Loads the tokenizers and the text encoders (f32) of a run's models.
    ///
    /// # Errors
    /// If a part is missing or not supported.
    pub fn load(run: &Run, models: &ModelFolder, device: Device) -> Result<Self> {
        Ok(Self {
            tokenizers: open_tokenizers(models, &run.file.encode)?,
            text_encoders: TextEncoders::load(models, device, Kind::Float)?,
            join: run.text_join(models)?,
            device,
        })
    }

    /// Computes the embeddings of the N prompts, f32: those of all text encoders, joined.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn embed(&self, prompts: &[String]) -> Result<TextStates> {
        let rows = prompts.len() as i64;
        let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
        let tokenize = |tokenizer: &SharedTokenizer| Ok(tokenizer.encode_captions(&prompts)?);
        let ids = self.tokenizers.iter().map(tokenize).collect::<Result<Vec<_>>>()?;
        let encode = |(encoder, ids): (usize, &Vec<i32>)| {
            let ids = Tensor::from_slice(ids).view([rows, -1]).to_device(self.device);
            self.text_encoders.encode(encoder, &ids.to_kind(Kind::Int64))
        };
        let forward = || tch::no_grad(|| self.join.join(ids.iter().enumerate().map(encode).collect()));
        guard(forward).map_err(|e| tidemill_models::Error::from(e).into())
    }
}
