//! The text part of `Encode`: token ids to the text columns.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};
use tidemill_data::ClipTokenizer;
use tidemill_models::{ModelFolder, TextEncoders, TextStates};
use tidemill_store::{Dtype, TensorSpec, TextColumn};
use tidemill_torch::{Download, upload};

use super::config::{EncodeConfig, StoredText};
use crate::encode::launch_model::launch_model;
use crate::error::Result;

/// What becomes of token ids.
#[derive(Debug)]
pub(super) enum TextStage {
    /// Text embeddings, and the number format in which hidden states are stored.
    Embeddings(Box<TextEncoders>, Dtype),
    /// Token ids, unchanged, for so many text encoders.
    TokenIds(usize),
}

/// The tokenizers of a folder's text encoders, in order.
///
/// # Errors
/// If one cannot be read.
pub fn open_tokenizers(models: &ModelFolder) -> Result<Vec<ClipTokenizer>> {
    let folders = models.text_encoders()?;
    folders.iter().map(|folder| Ok(ClipTokenizer::open(&folder.tokenizer)?)).collect()
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
        Ok(match config.embeddings {
            StoredText::F16 => Self::Embeddings(encoders()?, Dtype::F16),
            StoredText::F8 => Self::Embeddings(encoders()?, Dtype::F8E4m3),
            StoredText::TokenIds => Self::TokenIds(models.text_encoders()?.len()),
        })
    }

    /// Number of text encoders.
    pub fn encoder_count(&self) -> usize {
        match self {
            Self::Embeddings(encoders, _) => encoders.count(),
            Self::TokenIds(count) => *count,
        }
    }

    /// The columns that hold a caption of `tokens` token ids, with their dtypes and shapes. Pooled outputs are
    /// short, and always f16.
    pub fn columns(&self, tokens: usize) -> BTreeMap<TextColumn, TensorSpec> {
        (0..self.encoder_count()).flat_map(|encoder| self.columns_of(encoder, tokens)).collect()
    }

    /// The columns of one encoder, counted from 0.
    pub fn columns_of(&self, encoder: usize, tokens: usize) -> Vec<(TextColumn, TensorSpec)> {
        let (number, tokens) = (encoder as u8 + 1, tokens as u32);
        let hidden = TextColumn::hidden(number);
        match self {
            Self::TokenIds(_) => vec![(hidden, TensorSpec { dtype: Dtype::I32, shape: vec![tokens] })],
            Self::Embeddings(encoders, dtype) => {
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
        let encoders = match self {
            Self::TokenIds(_) => return Ok(vec![TextValues::TokenIds(to_le_bytes(ids))]),
            Self::Embeddings(encoders, _) => encoders,
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
