//! The columns that text encoders give. The first encoder's hidden states are the column `text`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A column with what a text encoder gives for a caption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TextColumn {
    /// Number of the encoder, from 1, as in the folders `text_encoder`, `text_encoder_2`.
    encoder: u8,
    is_pooled: bool,
}

impl TextColumn {
    /// Hidden states of the first encoder.
    pub const FIRST: Self = Self::hidden(1);

    /// Hidden states of an encoder, or token ids for it. Encoders count from 1.
    pub const fn hidden(encoder: u8) -> Self {
        Self { encoder, is_pooled: false }
    }

    /// The pooled output of an encoder: one vector for each caption.
    pub const fn pooled(encoder: u8) -> Self {
        Self { encoder, is_pooled: true }
    }

    /// Number of the encoder, from 1.
    pub fn encoder(self) -> u8 {
        self.encoder
    }

    /// Whether it is a pooled output.
    pub fn is_pooled(self) -> bool {
        self.is_pooled
    }
}

impl fmt::Display for TextColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_pooled { "pooled" } else { "text" })?;
        if self.encoder > 1 { write!(f, "_{}", self.encoder) } else { Ok(()) }
    }
}

impl FromStr for TextColumn {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let (kind, encoder) = match name.split_once('_') {
            None => (name, 1),
            Some((kind, number)) => (kind, number.parse().map_err(drop)?),
        };
        let column = match kind {
            "text" => Self::hidden(encoder),
            "pooled" => Self::pooled(encoder),
            _ => return Err(()),
        };
        // Only one name for each column.
        if column.to_string() == name { Ok(column) } else { Err(()) }
    }
}

impl TryFrom<String> for TextColumn {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse().map_err(|()| format!("`{name}` is not a text column that this version knows"))
    }
}

impl From<TextColumn> for String {
    fn from(column: TextColumn) -> Self {
        column.to_string()
    }
}
