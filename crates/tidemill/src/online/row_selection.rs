//! Rows of `Prepare` or `Encode` on their way into batches.

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use tidemill_data::prepared;
use tidemill_data::status::KEPT;
use tidemill_store::Split;

use crate::error::{Error, Result};

/// The rows that are trained on at a resolution, with the columns that this takes.
#[derive(Debug, Clone)]
pub struct Selection {
    /// In pixels.
    pub resolution: u32,
    /// Share of the rows held out.
    pub held_out: f64,
}

impl Selection {
    /// These rows of a batch, which may be encoded or not.
    ///
    /// # Errors
    /// If a column is missing.
    pub fn of(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let [pixels, latents] = ["pixels", "latents"].map(|name| format!("{name}_{}", self.resolution));
        let size = format!("size_{}", self.resolution);
        let wanted = ["sample_id", "status", "reason", "token_ids", "text", &size, &pixels, &latents];
        let schema = batch.schema();
        let columns = (0..batch.num_columns()).filter(|i| wanted.contains(&schema.field(*i).name().as_str()));
        let batch = batch.project(&columns.collect::<Vec<_>>())?;
        let image = batch.column_by_name(&latents).or_else(|| batch.column_by_name(&pixels));
        let image = image.ok_or_else(|| missing(&latents))?;
        let status = prepared::text(&batch, "status").ok_or_else(|| missing("status"))?;
        let ids = sample_ids(&batch)?;
        let wanted = |row: usize| {
            status.value(row) == KEPT
                && image.is_valid(row)
                && Split::from_sample_id(ids[row], self.held_out) == Split::Train
        };
        let mask: BooleanArray = (0..batch.num_rows()).map(|row| Some(wanted(row))).collect();
        Ok(filter_record_batch(&batch, &mask)?)
    }
}

/// The column `sample_id`.
///
/// # Errors
/// If it is missing.
pub fn sample_ids(batch: &RecordBatch) -> Result<&[u64]> {
    prepared::sample_ids(batch).ok_or_else(|| missing("sample_id"))
}

/// The bytes of a column's rows, none of which is null, one after the other.
///
/// # Errors
/// If the column is missing or not binary.
pub fn bytes(batch: &RecordBatch, name: &str) -> Result<Vec<u8>> {
    let column = batch.column_by_name(name).ok_or_else(|| missing(name))?;
    if let Some(column) = column.as_binary_opt::<i64>() {
        return Ok(column.iter().flatten().collect::<Vec<_>>().concat());
    }
    let column = column.as_fixed_size_binary_opt().ok_or_else(|| missing(name))?;
    Ok(column.iter().flatten().collect::<Vec<_>>().concat())
}

/// Rows of several batches of one schema, each named by its batch and its place there.
///
/// # Errors
/// If Arrow refuses.
pub fn pick(batches: &[&RecordBatch], rows: &[(usize, usize)]) -> Result<RecordBatch> {
    Ok(arrow::compute::interleave_record_batch(batches, rows)?)
}

fn missing(column: &str) -> Error {
    Error::Encode(format!("the rows have no column `{column}` of the right type"))
}
