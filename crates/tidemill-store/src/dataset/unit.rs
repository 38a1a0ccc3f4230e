//! The unit of work: a range of an input file together with everything that shapes its output.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dataset::object_keys::{COMMITS, DATA};

/// Identifies a unit: a range of one input file and everything that shapes its output.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UnitKey {
    /// Path or URI of the input file.
    pub file: String,
    /// Digest of the input file's identity. It changes when the content of the file changes.
    pub identity: String,
    /// Range of the input file, in rows (Parquet) or bytes, depending on the format.
    pub span: Range<u64>,
    /// Digests of everything else that shapes the output.
    pub digests: Digests,
}

/// Digests of settings, models and code, by what they shape. A unit is processed again when any of
/// them changes. Tensor columns whose digest is unchanged are then copied from the last commit of
/// the unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digests {
    /// Digest of what shapes the rows: which are kept, and all columns other than tensors.
    pub rows: String,
    /// Digest of what shapes each tensor column, by column name (`latents_256`, `text`).
    pub tensors: BTreeMap<String, String>,
}

/// Id of a unit: 32 hexadecimal digits of BLAKE3 over identity, span and digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitId(u128);

impl UnitKey {
    /// Computes the id of the unit.
    pub fn id(&self) -> UnitId {
        let mut text =
            format!("{}\n{}\n{}\n{}", self.identity, self.span.start, self.span.end, self.digests.rows);
        for (column, digest) in &self.digests.tensors {
            text += &format!("\n{column} {digest}");
        }
        let hash = blake3::hash(text.as_bytes());
        let (first, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[0; 16], &[]));
        UnitId(u128::from_be_bytes(*first))
    }
}

impl UnitId {
    /// Key of the unit's commit.
    pub(crate) fn commit_key(&self) -> String {
        format!("{COMMITS}/{self}.json")
    }

    /// The unit that a commit key belongs to, or `None` if the key is not a commit key.
    pub(crate) fn from_commit_key(key: &str) -> Option<Self> {
        key.strip_prefix(COMMITS)?.strip_prefix('/')?.strip_suffix(".json")?.parse().ok()
    }

    /// Folder of an attempt at the unit.
    pub(crate) fn folder(self, attempt: &str) -> String {
        format!("{DATA}/{self}/{attempt}")
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for UnitId {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let digits = name.len() == 32 && name.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let id = digits.then(|| u128::from_str_radix(name, 16).ok()).flatten();
        id.map(Self).ok_or_else(|| format!("`{name}` is not a unit id; it must have 32 hexadecimal digits"))
    }
}

impl TryFrom<String> for UnitId {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<UnitId> for String {
    fn from(id: UnitId) -> Self {
        id.to_string()
    }
}
