//! Writes the files of one attempt at a unit. Checks each batch, counts its rows, and divides it
//! into column groups and splits.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use tidemill_io::Location;

use super::split_files::SplitFiles;
use super::tensor_columns::TensorColumns;
use crate::dataset::commit::{Commit, FileEntry};
use crate::dataset::row_counts::{RowCounts, string_column};
use crate::dataset::spec::DatasetSpec;
use crate::dataset::split::Split;
use crate::error::{Error, Result};
use crate::writer::shard_file::ShardWriter;

/// The files of an attempt.
pub struct UnitFiles {
    location: Location,
    folder: String,
    spec: DatasetSpec,
    counts: RowCounts,
    rows: Option<ShardWriter>,
    splits: Vec<SplitFiles>,
}

impl UnitFiles {
    /// Starts without files; they will be in `folder`. `earlier` is a commit with reusable tensors,
    /// and the names of its columns that are still valid.
    pub fn new(
        location: &Location,
        folder: String,
        spec: &DatasetSpec,
        earlier: Option<(&Commit, BTreeSet<String>)>,
    ) -> Self {
        let splits =
            Split::ALL.map(|split| SplitFiles::new(location, &folder, split, spec, earlier.as_ref()));
        Self {
            location: location.clone(),
            folder,
            spec: spec.clone(),
            counts: RowCounts::default(),
            rows: None,
            splits: splits.into(),
        }
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let first = u32::try_from(self.counts.read + batch.num_rows() as u64).map_err(|_| Error::Config {
            key: "unit",
            problem: "a unit has more than 2^32 rows; make units smaller".into(),
        })? - batch.num_rows() as u32;
        let tensors = TensorColumns::read(batch, first, &self.spec)?;
        self.counts.add(&RowCounts::from_batch(batch)?);
        let kept = kept_rows(batch)?;
        self.write_rows(batch)?;
        for writer in &mut self.splits {
            let split = |row: &u32| self.spec.split(tensors.sample_ids.value(*row as usize));
            let rows: Vec<u32> = kept.iter().copied().filter(|row| split(row) == writer.split()).collect();
            writer.write(&rows, &tensors)?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<(RowCounts, Vec<FileEntry>)> {
        let mut files = self.rows.into_iter().map(ShardWriter::finish).collect::<Result<Vec<_>>>()?;
        for split in self.splits {
            files.extend(split.finish()?);
        }
        Ok((self.counts, files))
    }

    /// Writes all columns other than tensors.
    fn write_rows(&mut self, batch: &RecordBatch) -> Result<()> {
        let of_images = |r: u32| [format!("latents_{r}"), format!("time_ids_{r}")];
        let images = self.spec.resolutions().into_iter().flat_map(of_images);
        let tensors: Vec<String> =
            images.chain(self.spec.text_columns().map(|(column, _)| column.to_string())).collect();
        let schema = batch.schema();
        let plain = (0..batch.num_columns()).filter(|i| !tensors.contains(schema.field(*i).name()));
        let batch = batch.project(&plain.collect::<Vec<_>>())?;
        let rows = match &mut self.rows {
            Some(rows) => rows,
            None => {
                let schema = Arc::new(Schema::new(batch.schema().fields().clone()));
                self.rows.insert(ShardWriter::create_rows(&self.location, &self.folder, schema)?)
            }
        };
        rows.write(batch.columns().to_vec())
    }
}

/// The indices of the kept rows.
fn kept_rows(batch: &RecordBatch) -> Result<Vec<u32>> {
    let rows = string_column(batch, "status")?.iter().zip(0..);
    Ok(rows.filter_map(|(status, row)| (status == Some("kept")).then_some(row)).collect())
}
