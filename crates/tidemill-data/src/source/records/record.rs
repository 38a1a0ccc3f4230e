//! A row of a container whose fields have no types of their own.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::source::field_path::find_value;

/// Most bytes of one row's text: a line, a CSV record, a text member of a tar.
pub const MAX_TEXT: usize = 16 << 20;

/// A row as its container has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// `source_row`: the position of the row in its file.
    pub row: u64,
    /// The container's own name of the row, which becomes its key.
    pub key: Option<String>,
    /// All fields but the image.
    pub fields: Map<String, Value>,
    /// Fields that exist but are unreadable, and why, as `kind: detail`. They are errors only if
    /// the field is needed.
    pub unreadable: Vec<(String, String)>,
    /// The encoded image, if the container holds it.
    pub image: Option<Bytes>,
    /// The path or URI of an image that the container does not hold, if it is known otherwise than
    /// by the field of the image.
    pub image_uri: Option<String>,
    /// Extensions of the files of a sample: of tars, zips and captions beside images.
    pub members: Vec<String>,
    /// A sample in front of this one has the same key.
    pub is_repeated: bool,
    /// Bytes of the fields in the container.
    pub text_bytes: usize,
    /// Why the row is incomplete, as `kind: detail`.
    pub error: Option<String>,
}

impl Record {
    /// A row that is only an error.
    pub(crate) fn with_error(row: u64, error: impl Into<String>) -> Self {
        Self { row, error: Some(error.into()), ..Self::default() }
    }

    /// The value of a field, by its name or a path into nested fields.
    pub(crate) fn field(&self, name: &str) -> Option<Cow<'_, Value>> {
        find_value(&self.fields, name)
    }

    /// Sets the error, unless there is one already.
    pub(crate) fn set_error(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    /// Bytes of the fields and of the image.
    pub(super) fn bytes(&self) -> usize {
        self.text_bytes + self.image.as_ref().map_or(0, Bytes::len)
    }
}
