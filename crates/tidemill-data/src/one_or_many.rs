//! A value of the run file that is one string or a list of strings.

use serde::{Deserialize, Serialize};

/// One string or a list of strings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string, or a list of them")]
pub enum OneOrMany {
    /// `uri = "a"`
    One(String),
    /// `uri = ["a", "b"]`
    Many(Vec<String>),
}

impl OneOrMany {
    /// All strings, however they were written.
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
