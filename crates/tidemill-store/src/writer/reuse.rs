//! What earlier runs left that is still good. When settings change, a unit is done anew under another name; the
//! tensors of columns whose digest has not changed are copied from the unit's last commit instead of being
//! computed again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;

use crate::dataset::commit::{Commit, FileEntry, Footer};
use crate::dataset::layout::{ColumnGroup, Split};
use crate::dataset::manifest::Manifest;
use crate::dataset::rows::read_rows_file;
use crate::dataset::spec::TensorSpec;
use crate::dataset::unit::{UnitId, UnitKey};
use crate::error::Result;
use crate::shard::buffer::BufferPool;
use crate::shard::footer::{BlockEntry, read_blocks};
use crate::shard::row_group::{RowGroup, RowGroupReader};
use tidemill_io::Location;

/// The commits of the newest snapshot, by the rows that they are about.
#[derive(Debug, Default)]
pub struct ReusableCommits {
    commits: HashMap<(String, u64, u64), Commit>,
}

/// What an earlier commit knows of a unit's rows.
#[derive(Debug, Clone)]
pub struct ReusableRows {
    /// `rows.parquet` of the earlier commit: one row per row of the unit.
    pub rows: RecordBatch,
    /// The tensor columns that its kept rows need not be encoded for.
    pub tensors: BTreeSet<String>,
}

impl ReusableCommits {
    /// Those commits of a snapshot that nobody has removed since.
    pub fn new(snapshot: Option<Manifest>, committed: &BTreeSet<UnitId>) -> Self {
        let commits = snapshot.into_iter().flat_map(|snapshot| snapshot.commits);
        let commits = commits.filter(|commit| committed.contains(&commit.id));
        Self { commits: commits.map(|commit| (rows_of(&commit.unit), commit)).collect() }
    }

    /// The commit about the same rows under other settings, if any of its tensors is still good, and the columns
    /// that are.
    pub fn find(&self, unit: &UnitKey) -> Option<(&Commit, BTreeSet<String>)> {
        let commit = self.commits.get(&rows_of(unit))?;
        let same =
            |(column, digest): &(&String, &String)| commit.unit.digests.tensors.get(*column) == Some(digest);
        let tensors: BTreeSet<String> =
            unit.digests.tensors.iter().filter(same).map(|(column, _)| column.clone()).collect();
        // A unit of the very same name is done again because its files are damaged.
        (commit.id != unit.id() && !tensors.is_empty()).then_some((commit, tensors))
    }

    /// What is known of a unit's rows.
    pub fn find_reusable(&self, location: &Location, unit: &UnitKey) -> Result<Option<ReusableRows>> {
        let Some((commit, tensors)) = self.find(unit) else { return Ok(None) };
        let Some(file) = commit.file(ColumnGroup::Rows) else { return Ok(None) };
        Ok(Some(ReusableRows { rows: read_rows_file(location, file)?, tensors }))
    }
}

/// File and rows, whatever becomes of them.
fn rows_of(unit: &UnitKey) -> (String, u64, u64) {
    (unit.identity.clone(), unit.span.start, unit.span.end)
}

/// The tensors of one column of an earlier commit, asked for in ascending order of rows.
pub struct ReusableColumn {
    splits: Vec<Cursor>,
}

/// Goes through the blocks of one file.
struct Cursor {
    location: Location,
    unit: UnitId,
    footer: Footer,
    /// The file's row groups, once they are known.
    blocks: Option<Vec<BlockEntry>>,
    width: usize,
    pool: Arc<BufferPool>,
    /// The block in memory, and which it is.
    block: Option<(usize, RowGroup)>,
}

impl ReusableColumn {
    /// A group of `commit` in both splits: the share held out may have changed.
    pub fn new(location: &Location, commit: &Commit, group: ColumnGroup, spec: &TensorSpec) -> Self {
        let own = group.split();
        let others = Split::ALL.into_iter().filter(|split| Some(*split) != own);
        let files = own.into_iter().chain(others).filter_map(|split| commit.file(group.in_split(split)));
        let cursor = |file: &FileEntry| Cursor {
            location: location.clone(),
            unit: commit.id,
            footer: file.footer(),
            blocks: None,
            width: spec.bytes(),
            pool: BufferPool::new(1),
            block: None,
        };
        Self { splits: files.map(cursor).collect() }
    }

    /// The tensor of the unit's row, if there is one.
    pub fn get(&mut self, row: u32) -> Result<Option<Bytes>> {
        for cursor in &mut self.splits {
            if let Some(tensor) = cursor.find(row)? {
                return Ok(Some(tensor));
            }
        }
        Ok(None)
    }
}

impl Cursor {
    /// Goes on to the block that may have the row; gives its tensor there.
    fn find(&mut self, row: u32) -> Result<Option<Bytes>> {
        if self.blocks.is_none() {
            self.blocks = Some(read_blocks(&self.footer, &self.location, self.unit)?);
        }
        loop {
            if let Some((number, block)) = &self.block
                && block.rows.last().is_some_and(|last| *last >= row)
            {
                let Some(place) = self.place(*number) else { return Ok(None) };
                return block.rows.binary_search(&row).ok().map(|i| place.tensor(block, i)).transpose();
            }
            let next = self.block.as_ref().map_or(0, |(number, _)| number + 1);
            let Some(place) = self.place(next) else { return Ok(None) };
            self.block = Some((next, place.read(&self.pool)?));
        }
    }

    fn place(&self, block: usize) -> Option<RowGroupReader<'_>> {
        let Self { location, unit, footer, width, .. } = self;
        let entry = self.blocks.as_ref()?.get(block)?;
        Some(RowGroupReader { location, unit: *unit, path: &footer.path, entry, width: *width })
    }
}
