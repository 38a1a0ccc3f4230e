//! The column that ties rows to their unit while they pass through Ray Data.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};
use tidemill_data::{InputUnit, prepared};

use crate::engine::ray::json_exchange::{from_json, to_json};
use crate::error::{Error, Result};

/// Name of the column. Its value, the same for all rows of a unit, is the unit and its number of
/// rows, as JSON.
pub const UNIT_COLUMN: &str = "tidemill_unit";

/// How users keep the rows of a unit together.
pub(crate) const KEEP_UNITS_WHOLE: &str = "give batch_size=None to every map_batches, keep the rows that Prepare rejects, \
                                           and do not repartition, sort or limit between read and write_latents";

/// A value of [`UNIT_COLUMN`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WholeUnit {
    #[serde(flatten)]
    unit: InputUnit,
    rows: u64,
}

/// Adds the column to batches that together are all rows of the unit.
pub(crate) fn add_unit_column(batches: &[RecordBatch], unit: &InputUnit) -> Result<Vec<RecordBatch>> {
    let rows = count_rows(batches);
    let name = to_json(&WholeUnit { unit: unit.clone(), rows })?;
    batches.iter().map(|batch| with_unit_name(batch, &name)).collect()
}

/// Removes the column, if the batch has it.
pub(crate) fn remove_unit_column(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = batch.schema();
    let is_other = |i: &usize| schema.field(*i).name() != UNIT_COLUMN;
    Ok(batch.project(&(0..batch.num_columns()).filter(is_other).collect::<Vec<_>>())?)
}

/// The units that rows belong to, as JSON, each once as long as its rows are consecutive.
pub(crate) fn list_units(batches: &[RecordBatch]) -> Result<Vec<String>> {
    let mut units: Vec<String> = Vec::new();
    for column in batches.iter().filter_map(|batch| batch.column_by_name(UNIT_COLUMN)) {
        let column = arrow::compute::cast(column, &DataType::Utf8)?;
        for unit in column.as_string::<i32>().iter().flatten() {
            if units.last().is_none_or(|last| last != unit) {
                units.push(unit.to_owned());
            }
        }
    }
    Ok(units)
}

/// Reads a unit, and checks that `batches` have all its rows.
///
/// # Errors
/// [`Error::Unit`] if rows are missing, or there are too many.
pub(crate) fn parse_whole_unit(json: &str, batches: &[RecordBatch]) -> Result<InputUnit> {
    let WholeUnit { unit, rows } = from_json(json)?;
    let received = count_rows(batches);
    if received != rows {
        let (file, span) = (&unit.file.uri, unit.span.range());
        return Err(Error::Unit(format!(
            "{received} of {rows} rows of {file} ({span:?}) came in one block; {KEEP_UNITS_WHOLE}"
        )));
    }
    Ok(unit)
}

/// The sample ids of all rows, in order.
pub(crate) fn collect_sample_ids(batches: &[RecordBatch]) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for batch in batches {
        let batch_ids = prepared::sample_ids(batch).ok_or_else(|| {
            Error::Encode(
                "the rows have no column `sample_id` (UInt64); give rows that Prepare and Encode returned"
                    .into(),
            )
        })?;
        ids.extend_from_slice(batch_ids);
    }
    Ok(ids)
}

/// Adds a nullable column at the end of a batch.
pub(crate) fn append_column(batch: &RecordBatch, name: &str, column: ArrayRef) -> Result<RecordBatch> {
    let schema = batch.schema();
    let field = Arc::new(Field::new(name, column.data_type().clone(), true));
    let fields = schema.fields().iter().cloned().chain([field]).collect::<Vec<_>>();
    let columns = batch.columns().iter().cloned().chain([column]).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())), columns)?)
}

fn with_unit_name(batch: &RecordBatch, name: &str) -> Result<RecordBatch> {
    let names = StringArray::from_iter_values(std::iter::repeat_n(name, batch.num_rows()));
    append_column(batch, UNIT_COLUMN, Arc::new(names))
}

fn count_rows(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.num_rows() as u64).sum()
}

#[cfg(test)]
mod tests {
    use tidemill_data::source::{InputFile, Span};

    use super::*;

    /// One row for each name of a unit.
    fn rows(units: &[&str]) -> RecordBatch {
        let ids: ArrayRef = Arc::new(arrow::array::UInt64Array::from_iter_values(0..units.len() as u64));
        let batch = RecordBatch::try_from_iter([("sample_id", ids)]).unwrap();
        append_column(&batch, UNIT_COLUMN, Arc::new(StringArray::from_iter_values(units))).unwrap()
    }

    #[test]
    fn units_of_a_block_are_listed_in_order() {
        let units = |batches: &[&[&str]]| {
            list_units(&batches.iter().map(|names| rows(names)).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(units(&[&["a", "a"], &[], &["a"]]), ["a"]);
        assert_eq!(units(&[&["a", "b"], &["b"]]), ["a", "b"]);
        assert_eq!(units(&[&[]]), [""; 0]);
        let bare = remove_unit_column(&rows(&["a"])).unwrap();
        assert_eq!(remove_unit_column(&with_unit_name(&bare, "b").unwrap()).unwrap(), bare);
        assert_eq!(collect_sample_ids(&[rows(&["a", "a"]), rows(&["a"])]).unwrap(), [0, 1, 0]);
    }

    #[test]
    fn incomplete_unit_is_refused() {
        let file = InputFile { uri: "a.parquet".into(), size: 1, identity: "a".into(), e_tag: None };
        let unit = InputUnit { file, span: Span::Rows(3..6), resident_bytes: 0 };
        let name = serde_json::to_string(&WholeUnit { unit: unit.clone(), rows: 3 }).unwrap();
        let parse = |lengths: &[usize]| {
            let batches = lengths.iter().map(|length| rows(&vec![name.as_str(); *length]));
            parse_whole_unit(&name, &batches.collect::<Vec<_>>())
        };
        assert_eq!(parse(&[1, 2]).unwrap(), unit);
        for lengths in [&[1, 1][..], &[3, 1]] {
            let error = parse(lengths).unwrap_err().to_string();
            assert!(
                error.contains("of 3 rows of a.parquet (3..6) came in one block; give batch_size=None"),
                "{error}"
            );
        }
    }
}
