//! Which prepared or encoded rows are trained on, and how they are taken out of Arrow batches.

use std::collections::BTreeSet;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use tidemill_data::columns::names::token_ids_encoder;
use tidemill_data::prepared;
use tidemill_data::status::KEPT;
use tidemill_store::{Split, TextColumn};

use crate::error::{Error, Result};

/// The rows that are trained on at one resolution, and the columns that this needs.
#[derive(Debug, Clone)]
pub(crate) struct RowSelection {
    /// The resolution in pixels.
    pub resolution: u32,
    /// The share of rows held out for validation.
    pub validation_share: f64,
}

impl RowSelection {
    /// The selected rows and columns of a batch, prepared or encoded.
    ///
    /// # Errors
    /// If a column is missing.
    pub fn select(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let [pixels, latents] = ["pixels", "latents"].map(|name| format!("{name}_{}", self.resolution));
        let size = format!("size_{}", self.resolution);
        let [crop, time_ids] = ["crop", "time_ids"].map(|name| format!("{name}_{}", self.resolution));
        let of_image = ["width", "height", "flipped", &size, &crop, &pixels, &latents, &time_ids];
        let is_needed = |name: &str| {
            ["sample_id", "status", "reason"].contains(&name)
                || of_image.contains(&name)
                || token_ids_encoder(name).is_some()
                || name.parse::<TextColumn>().is_ok()
        };
        let schema = batch.schema();
        let columns = (0..batch.num_columns()).filter(|i| is_needed(schema.field(*i).name()));
        let batch = batch.project(&columns.collect::<Vec<_>>())?;
        let image = batch.column_by_name(&latents).or_else(|| batch.column_by_name(&pixels));
        let image = image.ok_or_else(|| missing_column(&latents))?;
        let status = prepared::text(&batch, "status").ok_or_else(|| missing_column("status"))?;
        let ids = sample_ids(&batch)?;
        let is_selected = |row: usize| {
            status.value(row) == KEPT
                && image.is_valid(row)
                && Split::from_sample_id(ids[row], self.validation_share) == Split::Train
        };
        let mask: BooleanArray = (0..batch.num_rows()).map(|row| Some(is_selected(row))).collect();
        Ok(filter_record_batch(&batch, &mask)?)
    }
}

/// The column `sample_id`.
///
/// # Errors
/// If it is missing.
pub(crate) fn sample_ids(batch: &RecordBatch) -> Result<&[u64]> {
    prepared::sample_ids(batch).ok_or_else(|| missing_column("sample_id"))
}

/// The text columns of a batch, in order.
pub(crate) fn text_columns(batch: &RecordBatch) -> BTreeSet<TextColumn> {
    batch.schema().fields().iter().filter_map(|field| field.name().parse().ok()).collect()
}

/// The bytes of all rows of a column without nulls, concatenated.
///
/// # Errors
/// If the column is missing or not binary.
pub(crate) fn concat_bytes(batch: &RecordBatch, name: &str) -> Result<Vec<u8>> {
    let column = batch.column_by_name(name).ok_or_else(|| missing_column(name))?;
    if let Some(column) = column.as_binary_opt::<i64>() {
        return Ok(column.iter().flatten().collect::<Vec<_>>().concat());
    }
    let column = column.as_fixed_size_binary_opt().ok_or_else(|| missing_column(name))?;
    Ok(column.iter().flatten().collect::<Vec<_>>().concat())
}

fn missing_column(column: &str) -> Error {
    Error::Encode(format!("the rows have no column `{column}` of the right type"))
}
