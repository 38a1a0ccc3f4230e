//! Why an AVIF image cannot be decoded.

use std::fmt;

/// Why an image cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AvifError {
    /// The image needs something that the decoder does not support.
    Unsupported(String),
    /// The bytes are not a whole AVIF image.
    Damaged(String),
    /// The image has too many pixels.
    TooLarge(String),
}

impl AvifError {
    pub fn unsupported(what: &str) -> Self {
        Self::Unsupported(what.into())
    }

    pub fn damaged(what: &str) -> Self {
        Self::Damaged(what.into())
    }
}

impl fmt::Display for AvifError {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unsupported(what) => write!(formatter, "not supported: {what}"),
            Self::Damaged(what) => write!(formatter, "damaged: {what}"),
            Self::TooLarge(what) => write!(formatter, "too large: {what}"),
        }
    }
}

impl std::error::Error for AvifError {}
