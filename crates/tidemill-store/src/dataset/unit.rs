//! A unit of work: a range of an input file and everything that shapes what becomes of it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dataset::layout::{COMMITS, DATA};

/// What a unit is: a stretch of one input file and everything that shapes what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UnitKey {
    /// Path or URI of the input file.
    pub file: String,
    /// Digest of the input file's identity; changes when its content does.
    pub identity: String,
    /// Stretch of the input file, in what its format is cut by: rows (Parquet) or bytes.
    pub span: Range<u64>,
    /// Digests of everything else that shapes the output.
    pub digests: Digests,
}

/// Digests of settings, models and code, by what they shape. A unit is done anew when any of them changes;
/// tensors of columns whose digest is still the same are then copied from the unit's last commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digests {
    /// What shapes the rows: which are kept, and all columns that are no tensors.
    pub rows: String,
    /// What shapes each tensor column, by its name (`latents_256`, `text`).
    pub tensors: BTreeMap<String, String>,
}

/// The name of a unit: 32 hexadecimal digits of BLAKE3 over identity, span and digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitId(u128);

impl UnitKey {
    /// The unit's name.
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
    /// The key of the unit's commit.
    pub(crate) fn commit_key(&self) -> String {
        format!("{COMMITS}/{self}.json")
    }

    /// The unit of a commit's key.
    pub(crate) fn of_commit_key(key: &str) -> Option<Self> {
        key.strip_prefix(COMMITS)?.strip_prefix('/')?.strip_suffix(".json")?.parse().ok()
    }

    /// The folder of an attempt at the unit.
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
        id.map(Self).ok_or_else(|| format!("`{name}` is no unit: it has not 32 hexadecimal digits"))
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
