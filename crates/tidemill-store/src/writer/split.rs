//! The tensor files of one split of a unit. All of them end their row groups at the same rows, so that block
//! `n` of the latents joins with block `n` of the text and with no other.

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use arrow::compute::{filter, is_not_null};
use tidemill_io::Location;

use crate::commit::FileEntry;
use crate::error::Result;
use crate::layout::{Group, Split};
use crate::shard::ShardWriter;
use crate::spec::{DatasetSpec, TensorSpec};

/// The files, each of which exists once it has a row.
pub struct SplitWriter {
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
    group: Group,
    spec: TensorSpec,
    file: Option<ShardWriter>,
}

impl SplitWriter {
    pub fn new(location: &Location, folder: &str, split: Split, spec: &DatasetSpec) -> Self {
        let column = |group, spec: &TensorSpec| TensorColumn { group, spec: spec.clone(), file: None };
        let mut columns = vec![column(Group::Text(split), &spec.text)];
        columns.extend(
            spec.latents.iter().map(|(resolution, spec)| column(Group::Latents(split, *resolution), spec)),
        );
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

    /// Appends kept rows of this split: their indices, ids, and `text` and latents by resolution.
    pub fn write(&mut self, rows: &UInt32Array, sample_ids: &ArrayRef, tensors: &[ArrayRef]) -> Result<()> {
        let mut start = 0;
        while start < rows.len() {
            let length = (self.rows_per_block - self.filled).min(rows.len() - start);
            for (column, tensors) in self.columns.iter_mut().zip(tensors) {
                let tensors = tensors.slice(start, length);
                let file =
                    [&rows.slice(start, length) as &dyn Array, &sample_ids.slice(start, length), &tensors];
                let present = is_not_null(&tensors)?;
                column.write(&self.location, &self.folder, file, &present)?;
            }
            start += length;
            self.filled += length;
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
    /// Appends the rows that have a tensor here.
    fn write(
        &mut self,
        location: &Location,
        folder: &str,
        columns: [&dyn Array; 3],
        present: &BooleanArray,
    ) -> Result<()> {
        if present.true_count() == 0 {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(ShardWriter::tensors(location, folder, self.group, &self.spec)?),
        };
        let columns = columns.iter().map(|column| filter(*column, present));
        file.write(columns.collect::<Result<_, _>>()?)
    }
}
