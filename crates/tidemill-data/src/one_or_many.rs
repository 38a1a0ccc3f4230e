//! One string of the run file, or a list of them.

use serde::{Deserialize, Serialize};

/// One string or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string, or a list of them")]
pub enum OneOrMany {
    /// `uri = "a"`
    One(String),
    /// `uri = ["a", "b"]`
    Many(Vec<String>),
}

impl OneOrMany {
    /// The strings, however they were written.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(uri) => std::slice::from_ref(uri),
            Self::Many(uris) => uris,
        }
    }
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}
