//! A row of a container.

use bytes::Bytes;
use serde_json::{Map, Value};

/// Most bytes of one row's text: a line, a CSV record, a text member of a tar.
pub const MAX_TEXT: usize = 16 << 20;

/// One row, as its container has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// `source_row`: where the row is in its file.
    pub row: u64,
    /// The container's own name of the row.
    pub key: Option<String>,
    /// Everything but the image.
    pub fields: Map<String, Value>,
    /// Fields that are there but cannot be read, and why, as `kind: detail`: an error only where they are wanted.
    pub unreadable: Vec<(&'static str, &'static str)>,
    /// The encoded image, where the container holds it.
    pub image: Option<Bytes>,
    /// Bytes that the fields take in the container.
    pub text_bytes: usize,
    /// Why the row is not whole, as `kind: detail`.
    pub error: Option<String>,
}

impl Record {
    /// A row of which nothing can be used.
    pub(crate) fn broken(row: u64, error: impl Into<String>) -> Self {
        Self { row, error: Some(error.into()), ..Self::default() }
    }

    /// Notes what is wrong, unless something was wrong before.
    pub(crate) fn fail(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    /// Bytes of the fields and of the image.
    pub(super) fn bytes(&self) -> usize {
        self.text_bytes + self.image.as_ref().map_or(0, Bytes::len)
    }
}
