//! What `Prepare` and the text encoders need of a tokenizer.

use std::fmt;

use crate::error::Result;

/// Encodes captions as token ids of a fixed length. It can be used from any number of threads.
pub trait CaptionTokenizer: fmt::Debug + Send + Sync {
    /// Ids of a caption, special tokens and padding included.
    fn length(&self) -> usize;

    /// The ids of captions, one behind the other, on the threads of the current rayon pool.
    ///
    /// # Errors
    /// If a caption cannot be encoded.
    fn encode_captions(&self, captions: &[&str]) -> Result<Vec<i32>>;

    /// BLAKE3 (hex) of everything that decides the ids.
    fn digest(&self) -> &str;
}
