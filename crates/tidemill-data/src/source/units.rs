//! Input files, and the units of work that they are cut into.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// An object of a source, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputFile {
    /// Absolute path of a local file, or URI.
    pub uri: String,
    /// Bytes.
    pub size: u64,
    /// Digest (hex) of the size, the entity tag (local files: head and tail) and the name below the fixed part of the
    /// source's URI: the same wherever the file lies, another when its content changes.
    pub identity: String,
    /// The remote object's entity tag, by which a replaced one is known; no part of any identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e_tag: Option<String>,
}

/// A unit of work: a stretch of one file. Whoever has the unit and the configuration can read it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputUnit {
    /// The file.
    pub file: InputFile,
    /// Which part of it.
    pub span: Span,
    /// Bytes that reading it holds at a time because the container leaves no choice: of a Parquet file the heaviest
    /// row group, as it is stored and, where it must be unpacked, unpacked once.
    pub held: u64,
}

/// A stretch of a file, in what its format can be cut by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Span {
    /// Row indices: Parquet, whose footer knows them.
    Rows(Range<u64>),
    /// Byte offsets: everything else. A line belongs to the unit in which its first byte lies; how many rows there
    /// are is known only after reading.
    Bytes(Range<u64>),
}

impl InputUnit {
    /// Another part of the same file.
    pub fn part(&self, span: Span) -> Self {
        Self { span, ..self.clone() }
    }
}

impl Span {
    /// Start and end, whatever they count.
    pub fn range(&self) -> &Range<u64> {
        match self {
            Self::Rows(range) | Self::Bytes(range) => range,
        }
    }

    /// The number of rows, where it is known without reading.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Self::Rows(range) => Some(range.end - range.start),
            Self::Bytes(_) => None,
        }
    }
}

/// Refuses a source without a single unit.
pub fn some_units(units: Vec<InputUnit>, files: &[InputFile]) -> Result<Vec<InputUnit>> {
    if units.is_empty() {
        let file = files.iter().map(|file| file.uri.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::Read { file, problem: "there are no rows at all".into() });
    }
    Ok(units)
}
