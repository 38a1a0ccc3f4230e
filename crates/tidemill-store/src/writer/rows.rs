//! The rows of one attempt at a unit: checks each batch, counts what became of its rows, and splits it into
//! column groups and splits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Schema, UInt64Type};
use tidemill_io::Location;

use super::split::SplitWriter;
use crate::commit::{Counts, FileEntry};
use crate::error::{Error, Result};
use crate::layout::{Group, Split};
use crate::shard::ShardWriter;
use crate::spec::{DatasetSpec, TensorSpec};

/// The files of an attempt.
pub struct UnitRows {
    location: Location,
    folder: String,
    spec: DatasetSpec,
    counts: Counts,
    rows: Option<ShardWriter>,
    splits: Vec<SplitWriter>,
}

impl UnitRows {
    /// Files will lie in `folder`.
    pub fn new(location: &Location, folder: String, spec: &DatasetSpec) -> Self {
        let splits =
            Split::ALL.iter().map(|split| SplitWriter::new(location, &folder, *split, spec)).collect();
        Self {
            location: location.clone(),
            folder,
            spec: spec.clone(),
            counts: Counts::default(),
            rows: None,
            splits,
        }
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let first = u32::try_from(self.counts.read + batch.num_rows() as u64).map_err(|_| Error::Config {
            key: "unit",
            problem: "a unit has more than 2^32 rows; make units smaller".into(),
        })? - batch.num_rows() as u32;
        let tensors = self.tensors(batch)?;
        let sample_ids = sample_ids(batch)?;
        let kept = self.count(batch)?;
        self.write_rows(batch)?;
        for writer in &mut self.splits {
            let part =
                kept.iter().filter(|row| self.spec.split(sample_ids.value(**row as usize)) == writer.split());
            let part = UInt32Array::from_iter_values(part.copied());
            if part.is_empty() {
                continue;
            }
            let rows = UInt32Array::from_iter_values(part.values().iter().map(|row| first + row));
            let ids = take(sample_ids, &part, None)?;
            let tensors = tensors.iter().map(|column| take(column, &part, None));
            writer.write(&rows, &ids, &tensors.collect::<Result<Vec<_>, _>>()?)?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<(Counts, Vec<FileEntry>)> {
        let mut files = self.rows.into_iter().map(ShardWriter::finish).collect::<Result<Vec<_>>>()?;
        for split in self.splits {
            files.extend(split.finish()?);
        }
        Ok((self.counts, files))
    }

    /// `text` and then the latents by resolution, in the forms that the specification says.
    fn tensors(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let columns = tensor_columns(&self.spec);
        columns.iter().map(|(name, spec)| tensor_column(batch, name, spec).cloned()).collect()
    }

    /// Counts the batch; gives the indices of the kept rows.
    fn count(&mut self, batch: &RecordBatch) -> Result<Vec<u32>> {
        let (status, reason) = (text(batch, "status")?, text(batch, "reason")?);
        let embeddings = &batch["text"];
        let mut counts = Counts { read: batch.num_rows() as u64, ..Counts::default() };
        let mut kept = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            let reason = if reason.is_valid(row) { reason.value(row) } else { "unknown" };
            match status.value(row) {
                "kept" if embeddings.is_null(row) => {
                    return Err(column("text", "is null in a kept row".into()));
                }
                "kept" => kept.push(row as u32),
                "rejected" => *counts.rejected.entry(reason.to_owned()).or_default() += 1,
                "quarantined" => {
                    let kind = reason.split(':').next().unwrap_or(reason);
                    *counts.quarantined.entry(kind.to_owned()).or_default() += 1;
                }
                other => {
                    return Err(column(
                        "status",
                        format!("`{other}` is none of kept, rejected, quarantined"),
                    ));
                }
            }
        }
        counts.kept = kept.len() as u64;
        self.counts.add(&counts);
        Ok(kept)
    }

    /// Writes all columns that are no tensors.
    fn write_rows(&mut self, batch: &RecordBatch) -> Result<()> {
        let tensors = tensor_columns(&self.spec);
        let schema = batch.schema();
        let plain = (0..batch.num_columns())
            .filter(|i| tensors.iter().all(|(name, _)| name != schema.field(*i).name()));
        let batch = batch.project(&plain.collect::<Vec<_>>())?;
        let rows = match &mut self.rows {
            Some(rows) => rows,
            None => {
                let schema = Arc::new(Schema::new(batch.schema().fields().clone()));
                self.rows.insert(ShardWriter::rows(&self.location, &self.folder, schema)?)
            }
        };
        rows.write(batch.columns().to_vec())
    }
}

/// Names and forms of the tensor columns: `text`, then the latents by resolution.
fn tensor_columns(spec: &DatasetSpec) -> Vec<(String, &TensorSpec)> {
    let latents =
        spec.latents.iter().map(|(resolution, spec)| (Group::Latents(Split::Train, *resolution), spec));
    let groups = [(Group::Text(Split::Train), &spec.text)].into_iter().chain(latents);
    groups.filter_map(|(group, spec)| Some((group.column()?, spec))).collect()
}

fn tensor_column<'a>(batch: &'a RecordBatch, name: &str, spec: &TensorSpec) -> Result<&'a ArrayRef> {
    let array = find(batch, name)?;
    let schema = batch.schema();
    let metadata = schema.field_with_name(name)?.metadata();
    let shape = metadata.get("shape").and_then(|text| serde_json::from_str::<Vec<u32>>(text).ok());
    let width = i32::try_from(spec.bytes()).unwrap_or(i32::MAX);
    if *array.data_type() != DataType::FixedSizeBinary(width)
        || shape.is_some_and(|shape| shape != spec.shape)
    {
        let found = format!("{} {}", array.data_type(), metadata.get("shape").map_or("", String::as_str));
        return Err(column(name, format!("is {found}, but the dataset holds f16 of shape {:?}", spec.shape)));
    }
    Ok(array)
}

fn sample_ids(batch: &RecordBatch) -> Result<&UInt64Array> {
    let array = find(batch, "sample_id")?.as_primitive_opt::<UInt64Type>();
    array
        .filter(|ids| ids.null_count() == 0)
        .ok_or_else(|| column("sample_id", "is no UInt64 without nulls".into()))
}

fn text<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray> {
    find(batch, name)?.as_string_opt().ok_or_else(|| column(name, "is not Utf8".into()))
}

fn find<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| column(name, "is missing".into()))
}

fn column(name: &str, problem: String) -> Error {
    Error::Column { column: name.to_owned(), problem }
}
