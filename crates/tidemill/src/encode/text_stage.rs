//! The text part of `Encode`: token ids to the text columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use tidemill_data::tokenizer::CONTEXT;
use tidemill_data::{CaptionTokenizer, ClipTokenizer, T5Tokenizer};
use tidemill_models::{ModelFolder, T5Config, TextEncoderFolders, TextEncoders, TextStates};
use tidemill_store::{Dtype, TensorSpec, TextColumn};
use tidemill_torch::{Download, upload};

use super::config::{EncodeConfig, StoredText};
use crate::encode::launch_model::launch_model;
use crate::error::Result;

/// Token ids to text columns.
#[derive(Debug)]
pub(super) struct TextStage {
    output: TextOutput,
    /// Token ids of a caption for each encoder.
    lengths: Vec<usize>,
}

/// What becomes of token ids.
#[derive(Debug)]
enum TextOutput {
    /// Text embeddings, and the number format in which hidden states are stored.
    Embeddings(Box<TextEncoders>, Dtype),
    /// Token ids, unchanged.
    TokenIds,
}

/// A tokenizer that threads share.
pub type SharedTokenizer = Arc<dyn CaptionTokenizer>;

/// The tokenizers of a folder's text encoders, in order.
///
/// # Errors
/// If one cannot be read, or T5's captions have no tokens.
pub fn open_tokenizers(models: &ModelFolder, config: &EncodeConfig) -> Result<Vec<SharedTokenizer>> {
    let open = |folder: &TextEncoderFolders| -> Result<SharedTokenizer> {
        if !T5Config::is_t5(&folder.encoder)? {
            return Ok(Arc::new(ClipTokenizer::open(&folder.tokenizer)?));
        }
        Ok(Arc::new(T5Tokenizer::open(&folder.tokenizer, config.t5_tokens()?)?))
    };
    models.text_encoders()?.iter().map(open).collect()
}

/// Token ids of a caption for each of a folder's text encoders, in order.
///
/// # Errors
/// If a configuration cannot be read, or T5's captions have no tokens.
pub(crate) fn token_counts(models: &ModelFolder, config: &EncodeConfig) -> Result<Vec<usize>> {
    let count = |folder: &TextEncoderFolders| match T5Config::is_t5(&folder.encoder)? {
        true => config.t5_tokens(),
        false => Ok(CONTEXT),
    };
    models.text_encoders()?.iter().map(count).collect()
}

impl TextStage {
    /// Loads the text encoders of a folder.
    ///
    /// # Errors
    /// If one is missing or not supported, or the device is out of memory.
    pub fn load(models: &ModelFolder, config: &EncodeConfig, device: Device) -> Result<Self> {
        let encoders = || -> Result<Box<TextEncoders>> {
            Ok(Box::new(TextEncoders::load(models, device, config.dtype.to_kind())?))
        };
        let output = match config.embeddings {
            StoredText::F16 => TextOutput::Embeddings(encoders()?, Dtype::F16),
            StoredText::F8 => TextOutput::Embeddings(encoders()?, Dtype::F8E4m3),
            StoredText::TokenIds => TextOutput::TokenIds,
        };
        Ok(Self { output, lengths: token_counts(models, config)? })
    }

    /// The columns that hold a caption, with their dtypes and shapes. Pooled outputs are short, and always f16.
    pub fn columns(&self) -> BTreeMap<TextColumn, TensorSpec> {
        (0..self.lengths.len()).flat_map(|encoder| self.columns_of(encoder)).collect()
    }

    /// The columns of one encoder, counted from 0.
    pub fn columns_of(&self, encoder: usize) -> Vec<(TextColumn, TensorSpec)> {
        let (number, tokens) = (encoder as u8 + 1, self.lengths[encoder] as u32);
        let hidden = TextColumn::hidden(number);
        match &self.output {
            TextOutput::TokenIds => vec![(hidden, TensorSpec { dtype: Dtype::I32, shape: vec![tokens] })],
            TextOutput::Embeddings(encoders, dtype) => {
                let widths = encoders.widths()[encoder];
                let states = TensorSpec { dtype: *dtype, shape: vec![tokens, widths.hidden as u32] };
                let pooled =
                    widths.pooled.map(|width| (TextColumn::pooled(number), TensorSpec::f16([width as u32])));
                [(hidden, states)].into_iter().chain(pooled).collect()
            }
        }
    }

    /// Encodes captions, each of the same number of token ids, with one encoder. Returns the values of
    /// [`columns_of`](Self::columns_of), in this order; they may still be computed.
    ///
    /// # Errors
    /// A failure of libtorch, such as an id outside the vocabulary.
    pub fn encode(
        &self,
        encoder: usize,
        ids: &[i32],
        captions: usize,
        device: Device,
    ) -> Result<Vec<TextValues>> {
        let encoders = match &self.output {
            TextOutput::TokenIds => return Ok(vec![TextValues::TokenIds(to_le_bytes(ids))]),
            TextOutput::Embeddings(encoders, _) => encoders,
        };
        let results = launch_model(|| {
            let ids = upload(&Tensor::from_slice(ids).view([captions as i64, -1]), device);
            let TextStates { hidden, pooled } = encoders.encode(encoder, &ids.to_kind(Kind::Int64));
            [hidden].into_iter().chain(pooled).collect()
        })?;
        Ok(results.into_iter().map(TextValues::Computed).collect())
    }
}

/// Values of a text column, little-endian.
pub(super) enum TextValues {
    TokenIds(Vec<u8>),
    /// f16, row-major, on their way to the host.
    Computed(Download),
}

impl TextValues {
    /// Waits for the values.
    ///
    /// # Errors
    /// A failure of libtorch.
    pub fn into_bytes(self) -> Result<Vec<u8>> {
        match self {
            Self::TokenIds(bytes) => Ok(bytes),
            Self::Computed(download) => {
                Ok(download.wait_for_bytes().map_err(tidemill_models::Error::from)?.to_vec())
            }
        }
    }
}

fn to_le_bytes(ids: &[i32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}
