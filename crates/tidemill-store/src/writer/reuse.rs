//! Reuses tensors of earlier runs. When settings change, a unit is processed again under another
//! id. Tensor columns whose digest has not changed are copied from the unit's last commit instead
//! of being computed again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;

use crate::dataset::column_group::ColumnGroup;
use crate::dataset::commit::{Commit, FileEntry, Footer};
use crate::dataset::manifest::Manifest;
use crate::dataset::rows::read_rows_file;
use crate::dataset::spec::TensorSpec;
use crate::dataset::split::Split;
use crate::dataset::unit::{UnitId, UnitKey};
use crate::error::Result;
use crate::shard::buffer_pool::BufferPool;
use crate::shard::footer::{BlockEntry, read_blocks};
use crate::shard::row_group::{RowGroup, RowGroupReader};
use tidemill_io::Location;

/// The commits of the newest snapshot, by the input rows that they cover.
#[derive(Debug, Default)]
pub struct ReusableCommits {
    commits: HashMap<(String, u64, u64), Commit>,
}

/// What an earlier commit has of a unit's rows.
#[derive(Debug, Clone)]
pub struct ReusableRows {
    /// `rows.parquet` of the earlier commit: one row for each row of the unit.
    pub rows: RecordBatch,
    /// The tensor columns that need not be computed for its kept rows.
    pub tensors: BTreeSet<String>,
}

impl ReusableCommits {
    /// Takes the commits of a snapshot that still exist.
    pub fn new(snapshot: Option<Manifest>, committed: &BTreeSet<UnitId>) -> Self {
        let commits = snapshot.into_iter().flat_map(|snapshot| snapshot.commits);
        let commits = commits.filter(|commit| committed.contains(&commit.id));
        Self { commits: commits.map(|commit| (input_range(&commit.unit), commit)).collect() }
    }

    /// Finds the commit of the same rows under other settings, and its tensor columns that are
    /// still valid. Returns `None` if no column is.
    pub fn find(&self, unit: &UnitKey) -> Option<(&Commit, BTreeSet<String>)> {
        let commit = self.commits.get(&input_range(unit))?;
        let is_unchanged =
            |(column, digest): &(&String, &String)| commit.unit.digests.tensors.get(*column) == Some(digest);
        let tensors: BTreeSet<String> =
            unit.digests.tensors.iter().filter(is_unchanged).map(|(column, _)| column.clone()).collect();
        // A unit with the same id is processed again only because its files are damaged.
        (commit.id != unit.id() && !tensors.is_empty()).then_some((commit, tensors))
    }

    /// Finds the reusable rows and columns of a unit, see [`find`](Self::find).
    pub fn find_reusable(&self, location: &Location, unit: &UnitKey) -> Result<Option<ReusableRows>> {
        let Some((commit, tensors)) = self.find(unit) else { return Ok(None) };
        let Some(file) = commit.file(ColumnGroup::Rows) else { return Ok(None) };
        Ok(Some(ReusableRows { rows: read_rows_file(location, file)?, tensors }))
    }
}

/// The input range of a unit: file identity, start and end. It does not depend on settings.
fn input_range(unit: &UnitKey) -> (String, u64, u64) {
    (unit.identity.clone(), unit.span.start, unit.span.end)
}

/// Reads the tensors of one column of an earlier commit, in ascending order of rows.
pub struct ReusableColumn {
    splits: Vec<BlockCursor>,
}

/// Reads the blocks of one file one after the other.
struct BlockCursor {
    location: Location,
    unit: UnitId,
    footer: Footer,
    /// The row groups of the file, once its footer was read.
    blocks: Option<Vec<BlockEntry>>,
    width: usize,
    pool: Arc<BufferPool>,
    /// The row group in memory, and its index.
    current: Option<(usize, RowGroup)>,
}

impl ReusableColumn {
    /// Opens a column group of `commit` in both splits, because the validation share may have
    /// changed.
    pub fn new(location: &Location, commit: &Commit, group: ColumnGroup, spec: &TensorSpec) -> Self {
        let own_split = group.split();
        let other_splits = Split::ALL.into_iter().filter(|split| Some(*split) != own_split);
        let files =
            own_split.into_iter().chain(other_splits).filter_map(|split| commit.file(group.in_split(split)));
        let cursor = |file: &FileEntry| BlockCursor {
            location: location.clone(),
            unit: commit.id,
            footer: file.footer(),
            blocks: None,
            width: spec.bytes(),
            pool: BufferPool::new(1),
            current: None,
        };
        Self { splits: files.map(cursor).collect() }
    }

    /// The tensor of a row of the unit, or `None` if the commit has none.
    pub fn get(&mut self, row: u32) -> Result<Option<Bytes>> {
        for cursor in &mut self.splits {
            if let Some(tensor) = cursor.find(row)? {
                return Ok(Some(tensor));
            }
        }
        Ok(None)
    }
}

impl BlockCursor {
    /// Advances to the block that may hold the row, and returns its tensor from there.
    fn find(&mut self, row: u32) -> Result<Option<Bytes>> {
        if self.blocks.is_none() {
            self.blocks = Some(read_blocks(&self.footer, &self.location, self.unit)?);
        }
        loop {
            if let Some((number, row_group)) = &self.current
                && row_group.rows.last().is_some_and(|last| *last >= row)
            {
                let Some(reader) = self.row_group_reader(*number) else { return Ok(None) };
                return row_group
                    .rows
                    .binary_search(&row)
                    .ok()
                    .map(|i| reader.tensor(row_group, i))
                    .transpose();
            }
            let next = self.current.as_ref().map_or(0, |(number, _)| number + 1);
            let Some(reader) = self.row_group_reader(next) else { return Ok(None) };
            self.current = Some((next, reader.read(&self.pool)?));
        }
    }

    fn row_group_reader(&self, block: usize) -> Option<RowGroupReader<'_>> {
        let Self { location, unit, footer, width, .. } = self;
        let entry = self.blocks.as_ref()?.get(block)?;
        Some(RowGroupReader { location, unit: *unit, path: &footer.path, entry, width: *width })
    }
}
