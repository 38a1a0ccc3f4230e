//! A unit of work and the object that commits it. A commit is the only thing that makes a unit's files part
//! of the dataset: it names the attempt that won, what became of every row, and where every block of every
//! file lies.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tidemill_io::Checksum;

use crate::counts::Counts;
use crate::layout::{COMMITS, Group, Split};

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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitId(String);

impl UnitKey {
    /// The unit's name.
    pub fn id(&self) -> UnitId {
        let mut text =
            format!("{}\n{}\n{}\n{}", self.identity, self.span.start, self.span.end, self.digests.rows);
        for (column, digest) in &self.digests.tensors {
            text += &format!("\n{column} {digest}");
        }
        UnitId(blake3::hash(text.as_bytes()).to_hex()[..32].to_owned())
    }
}

impl UnitId {
    /// The key of the unit's commit.
    pub(crate) fn commit_key(&self) -> String {
        format!("{COMMITS}/{self}.json")
    }

    /// The unit of a commit's key.
    pub(crate) fn of_commit_key(key: &str) -> Option<Self> {
        let name = key.strip_prefix(COMMITS)?.strip_prefix('/')?.strip_suffix(".json")?;
        Some(Self(name.to_owned()))
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The commit object of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The unit's name.
    pub id: UnitId,
    /// The unit.
    pub unit: UnitKey,
    /// The attempt whose files these are.
    pub attempt: String,
    /// What became of the unit's rows.
    pub counts: Counts,
    /// The unit's files; a group without rows has none.
    pub files: Vec<FileEntry>,
}

/// A Parquet file of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The column group.
    pub group: Group,
    /// The object's key in the dataset.
    pub path: String,
    /// Rows.
    pub rows: u64,
    /// Size of the object.
    pub bytes: u64,
    /// Checksum of the whole object.
    pub xxh3: Checksum,
    /// The row groups of a tensor file, in order. Empty for [`Group::Rows`].
    pub blocks: Vec<BlockEntry>,
}

/// A row group of a tensor file. Its four columns are PLAIN, uncompressed, without nulls and one page each,
/// so their values can be read from the object without any Parquet code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockEntry {
    /// Blocks of the same number in the files of one split and unit hold rows of the same stretch of input.
    pub number: u32,
    /// Rows.
    pub rows: u32,
    /// Where the row group begins in the object, in bytes.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// Where the values of `row` (u32) begin, counted from `offset`.
    pub row_at: u32,
    /// Where the values of `sample_id` (u64) begin.
    pub sample_id_at: u32,
    /// Where the checksums of the rows begin (u64).
    pub xxh3_at: u32,
    /// Where the tensors begin; they reach to the end of the row group.
    pub values_at: u32,
    /// Checksum of the row group's bytes.
    pub xxh3: Checksum,
}

impl Commit {
    /// The file of a group, if it has any rows.
    pub fn file(&self, group: Group) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.group == group)
    }

    /// The rows of a group.
    pub fn rows(&self, group: Group) -> u64 {
        self.file(group).map_or(0, |file| file.rows)
    }

    /// What does not add up, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        let counts = &self.counts;
        let text: u64 = Split::ALL.iter().map(|split| self.rows(Group::Text(*split))).sum();
        if !counts.add_up() {
            return Some(format!(
                "kept {} + rejected {} + quarantined {} is not read {}",
                counts.kept,
                counts.total_rejected(),
                counts.total_quarantined(),
                counts.read
            ));
        }
        if text != counts.kept {
            return Some(format!("{text} text embeddings for {} kept rows", counts.kept));
        }
        (self.rows(Group::Rows) != counts.read)
            .then(|| format!("{} rows for {} rows read", self.rows(Group::Rows), counts.read))
    }
}
