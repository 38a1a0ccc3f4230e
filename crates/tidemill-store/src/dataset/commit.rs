//! The commit of a unit. Only a commit makes the files of a unit part of the dataset. It names the
//! attempt that won, counts what became of the rows, and lists the files with their checksums.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tidemill_io::{Checksum, Location};

use crate::dataset::column_group::ColumnGroup;

use crate::dataset::object_keys::COMMITS;

use crate::dataset::row_counts::RowCounts;
use crate::dataset::split::Split;
use crate::dataset::text_column::TextColumn;
use crate::dataset::unit::{UnitId, UnitKey};
use crate::error::{Error, Result};

/// The commit object of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Id of the unit.
    pub id: UnitId,
    /// Input range and settings of the unit.
    pub unit: UnitKey,
    /// Name of the attempt that wrote these files.
    pub attempt: String,
    /// What became of the rows of the unit.
    pub counts: RowCounts,
    /// The files of the unit. A column group without rows has no file.
    pub files: Vec<FileEntry>,
}

/// A Parquet file of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The column group that the file holds.
    pub group: ColumnGroup,
    /// Key of the object in the dataset.
    pub path: String,
    /// Number of rows.
    pub rows: u64,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Checksum of the whole object.
    pub xxh3: Checksum,
    /// Size in bytes of the Parquet footer, which is the end of the object. The footer of a tensor
    /// file says where its row groups are ([`crate::shard::footer`]).
    pub footer_bytes: u32,
    /// Checksum of the footer.
    pub footer_xxh3: Checksum,
}

/// Where the footer of a tensor file is.
#[derive(Debug, Clone)]
pub struct Footer {
    /// Key of the object in the dataset.
    pub path: String,
    /// Range of the footer in the object, in bytes.
    pub range: Range<u64>,
    /// Checksum of the footer.
    pub xxh3: Checksum,
}

impl FileEntry {
    /// The location of the file's footer.
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
    /// The file of a column group, or `None` if the group has no rows.
    pub fn file(&self, group: ColumnGroup) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.group == group)
    }

    /// Number of rows of a column group.
    pub fn rows(&self, group: ColumnGroup) -> u64 {
        self.file(group).map_or(0, |file| file.rows)
    }

    /// Describes a contradiction between the counts and the files, or returns `None` if they are
    /// consistent.
    pub(crate) fn find_contradiction(&self) -> Option<String> {
        let counts = &self.counts;
        let text: u64 =
            Split::ALL.iter().map(|split| self.rows(ColumnGroup::Text(*split, TextColumn::FIRST))).sum();
        if !counts.is_consistent() {
            return Some(format!(
                "kept {} + rejected {} + quarantined {} is not the number of rows read, {}",
                counts.kept,
                counts.total_rejected(),
                counts.total_quarantined(),
                counts.read
            ));
        }
        if text != counts.kept {
            return Some(format!("it has {text} text embeddings for {} kept rows", counts.kept));
        }
        (self.rows(ColumnGroup::Rows) != counts.read)
            .then(|| format!("it has {} rows for {} rows read", self.rows(ColumnGroup::Rows), counts.read))
    }
}

/// Lists the units that have a commit.
pub(crate) fn list_committed_units(location: &Location) -> Result<BTreeSet<UnitId>> {
    Ok(location.list(COMMITS)?.iter().filter_map(|key| UnitId::from_commit_key(key)).collect())
}

/// Reads the commits of units, in their order.
pub(crate) fn read_commits<'a>(
    location: &Location,
    units: impl IntoIterator<Item = &'a UnitId>,
) -> Result<Vec<Commit>> {
    let keys: Vec<String> = units.into_iter().map(UnitId::commit_key).collect();
    let objects = location.get_all(&keys)?;
    keys.iter().zip(objects).map(|(key, bytes)| parse_commit(location, key, &bytes)).collect()
}

/// Parses a commit object and checks that it is consistent.
pub(crate) fn parse_commit(location: &Location, key: &str, bytes: &[u8]) -> Result<Commit> {
    let fail = |problem: String| Error::Format { path: location.uri_of(key), problem };
    let commit: Commit = serde_json::from_slice(bytes).map_err(|e| {
        fail(format!(
            "this version cannot read the commit ({e}); if it is damaged, remove it and run `tidemill preprocess` \
             again; if another version of Tidemill wrote it, preprocess into another output"
        ))
    })?;
    match commit.find_contradiction() {
        None => Ok(commit),
        Some(problem) => Err(fail(format!("is not consistent: {problem}; remove it and preprocess again"))),
    }
}
