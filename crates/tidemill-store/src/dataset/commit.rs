//! A unit of work and the object that commits it. A commit is the only thing that makes a unit's files part
//! of the dataset: it names the attempt that won, what became of every row, and the files with their checksums.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tidemill_io::{Checksum, Location};

use crate::dataset::layout::{COMMITS, Group, Split};
use crate::dataset::row_counts::Counts;
use crate::dataset::unit::{UnitId, UnitKey};
use crate::error::{Error, Result};

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
    /// Size of the Parquet footer, which is the object's end. That of a tensor file says where its row groups are
    /// ([`crate::shard::footer`]).
    pub footer_bytes: u32,
    /// Checksum of the footer.
    pub footer_xxh3: Checksum,
}

/// Where the footer of a tensor file is.
#[derive(Debug, Clone)]
pub struct Footer {
    /// The object's key.
    pub path: String,
    /// Its bytes in the object.
    pub range: Range<u64>,
    /// Their checksum.
    pub xxh3: Checksum,
}

impl FileEntry {
    /// Where the footer is.
    pub fn footer(&self) -> Footer {
        let Self { path, bytes, footer_bytes, footer_xxh3, .. } = self;
        Footer {
            path: path.clone(),
            range: bytes.saturating_sub(u64::from(*footer_bytes))..*bytes,
            xxh3: *footer_xxh3,
        }
    }
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

pub(crate) fn committed(location: &Location) -> Result<BTreeSet<UnitId>> {
    Ok(location.list(COMMITS)?.iter().filter_map(|key| UnitId::of_commit_key(key)).collect())
}

pub(crate) fn read_commits<'a>(
    location: &Location,
    units: impl IntoIterator<Item = &'a UnitId>,
) -> Result<Vec<Commit>> {
    let keys: Vec<String> = units.into_iter().map(UnitId::commit_key).collect();
    let objects = location.get_all(&keys)?;
    keys.iter().zip(objects).map(|(key, bytes)| parse(location, key, &bytes)).collect()
}

pub(crate) fn parse(location: &Location, key: &str, bytes: &[u8]) -> Result<Commit> {
    let fail = |problem: String| Error::Format { path: location.uri_of(key), problem };
    let commit: Commit = serde_json::from_slice(bytes).map_err(|e| {
        fail(format!(
            "is no commit that this version can read ({e}); if it is damaged, remove it and run `tidemill preprocess` \
             again; if another version of Tidemill wrote it, preprocess into another output"
        ))
    })?;
    match commit.problem() {
        None => Ok(commit),
        Some(problem) => Err(fail(format!("does not add up: {problem}; remove it and preprocess again"))),
    }
}
