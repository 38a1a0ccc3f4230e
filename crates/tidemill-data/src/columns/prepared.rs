//! Columns of the batches that `Prepare` and `Encode` return, by name and type. `None` means that
//! the column is missing or has another type; the caller knows whether that is an error.

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::UInt64Type;

/// A column of texts, such as `status`.
pub fn text<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a StringArray> {
    batch.column_by_name(name)?.as_string_opt()
}

/// The column `sample_id`.
pub fn sample_ids(batch: &RecordBatch) -> Option<&[u64]> {
    Some(batch.column_by_name("sample_id")?.as_primitive_opt::<UInt64Type>()?.values())
}
