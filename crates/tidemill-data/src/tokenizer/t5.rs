//! T5's tokenizer, a SentencePiece unigram model in `tokenizer.json`, by the Hugging Face crate: captions to ids that
//! end with the end of text and are padded.

use std::path::Path;

use rayon::prelude::*;
use tokenizers::{PaddingParams, PaddingStrategy, Tokenizer, TruncationParams};

use super::caption_tokenizer::CaptionTokenizer;
use crate::error::{Error, Result};

/// The token that T5 pads with.
const PAD: &str = "<pad>";

/// T5's tokenizer.
#[derive(Debug)]
pub struct T5Tokenizer {
    tokenizer: Tokenizer,
    length: usize,
    digest: String,
}

impl T5Tokenizer {
    /// Opens a folder with `tokenizer.json`. Captions get `length` ids, at least 1.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the file is missing or malformed, or has no padding token.
    pub fn open(folder: &Path, length: usize) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let fail = |problem: String| Error::Tokenizer { path: path.display().to_string(), problem };
        let bytes = std::fs::read(&path).map_err(|e| fail(e.to_string()))?;
        let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|e| fail(e.to_string()))?;
        let pad_id = tokenizer.token_to_id(PAD).ok_or_else(|| fail(format!("it has no token {PAD}")))?;
        tokenizer.with_padding(Some(PaddingParams {
            strategy: PaddingStrategy::Fixed(length),
            pad_id,
            pad_token: PAD.into(),
            ..PaddingParams::default()
        }));
        let truncation = TruncationParams { max_length: length, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|e| fail(e.to_string()))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes).update(&(length as u64).to_le_bytes());
        Ok(Self { tokenizer, length, digest: hasher.finalize().to_hex().to_string() })
    }
}

impl CaptionTokenizer for T5Tokenizer {
    fn length(&self) -> usize {
        self.length
    }

    fn encode_captions(&self, captions: &[&str]) -> Result<Vec<i32>> {
        let encode = |caption: &&str| -> Result<Vec<i32>> {
            let encoding = self
                .tokenizer
                .encode_fast(*caption, true)
                .map_err(|e| Error::Tokenizer { path: "tokenizer.json".into(), problem: e.to_string() })?;
            Ok(encoding.get_ids().iter().map(|id| id.cast_signed()).collect())
        };
        let ids: Vec<Vec<i32>> = captions.par_iter().map(encode).collect::<Result<_>>()?;
        Ok(ids.concat())
    }

    fn digest(&self) -> &str {
        &self.digest
    }
}
