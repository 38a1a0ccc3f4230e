//! Writes the tensor files of one split of a unit. All of them end their row groups at the same
//! rows, so that block `n` of the latents joins with block `n` of the text and with no other block.

use std::collections::BTreeSet;

use tidemill_io::Location;

use super::reuse::ReusableColumn;
use super::tensor_columns::TensorColumns;
use crate::dataset::column_group::ColumnGroup;
use crate::dataset::commit::{Commit, FileEntry};
use crate::dataset::spec::{DatasetSpec, TensorSpec};
use crate::dataset::split::Split;
use crate::error::Result;
use crate::writer::shard_file::ShardWriter;

/// The tensor files of a split. Each file is created with its first row.
pub struct SplitFiles {
    location: Location,
    folder: String,
    split: Split,
    columns: Vec<TensorColumn>,
    rows_per_block: usize,
    /// Rows in the current block.
    filled: usize,
    /// Number of the current block.
    block: u32,
}

struct TensorColumn {
    group: ColumnGroup,
    spec: TensorSpec,
    file: Option<ShardWriter>,
    /// Source of tensors that the batch leaves out.
    earlier: Option<ReusableColumn>,
}

impl SplitFiles {
    /// Starts without files. `earlier` is a commit with reusable tensors, and the names of its
    /// columns that are still valid.
    pub fn new(
        location: &Location,
        folder: &str,
        split: Split,
        spec: &DatasetSpec,
        earlier: Option<&(&Commit, BTreeSet<String>)>,
    ) -> Self {
        let column = |group: ColumnGroup, spec: &TensorSpec| {
            let reusable = earlier
                .filter(|(_, reusable)| group.column().is_some_and(|column| reusable.contains(&column)));
            let earlier = reusable.map(|(commit, _)| ReusableColumn::new(location, commit, group, spec));
            TensorColumn { group, spec: spec.clone(), file: None, earlier }
        };
        let texts = spec.text_columns().map(|(text, form)| column(ColumnGroup::Text(split, text), form));
        let latents =
            spec.latents.iter().map(|(bucket, form)| column(ColumnGroup::Latents(split, *bucket), form));
        let time_ids = spec.latents.keys().filter(|_| spec.has_time_ids);
        let time_ids =
            time_ids.map(|bucket| column(ColumnGroup::TimeIds(split, *bucket), &TensorSpec::time_ids()));
        let columns = texts.chain(latents).chain(time_ids).collect();
        Self {
            location: location.clone(),
            folder: folder.to_owned(),
            split,
            columns,
            rows_per_block: spec.row_group_rows as usize,
            filled: 0,
            block: 0,
        }
    }

    pub fn split(&self) -> Split {
        self.split
    }

    /// Appends kept rows of this split, given by their indices in the batch.
    pub fn write(&mut self, mut rows: &[u32], tensors: &TensorColumns) -> Result<()> {
        while !rows.is_empty() {
            let (block_rows, rest) = rows.split_at((self.rows_per_block - self.filled).min(rows.len()));
            for column in &mut self.columns {
                column.write(&self.location, &self.folder, block_rows, tensors)?;
            }
            rows = rest;
            self.filled += block_rows.len();
            if self.filled == self.rows_per_block {
                self.end_block()?;
            }
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Vec<FileEntry>> {
        self.end_block()?;
        self.columns.into_iter().filter_map(|column| column.file).map(ShardWriter::finish).collect()
    }

    fn end_block(&mut self) -> Result<()> {
        for file in self.columns.iter_mut().filter_map(|column| column.file.as_mut()) {
            file.end_block(self.block)?;
        }
        self.block += 1;
        self.filled = 0;
        Ok(())
    }
}

impl TensorColumn {
    /// Appends those of the rows that have a tensor in this column.
    fn write(
        &mut self,
        location: &Location,
        folder: &str,
        rows: &[u32],
        tensors: &TensorColumns,
    ) -> Result<()> {
        let rows = tensors.select(rows, self.group);
        if rows.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(ShardWriter::create_tensors(location, folder, self.group, &self.spec)?),
        };
        file.write(tensors.columns(&rows, self.group, &self.spec, self.earlier.as_mut())?)
    }
}
