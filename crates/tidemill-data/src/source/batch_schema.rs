//! The schema of a source's batches, and the columns `sample_id`, `source_row` and key in front of
//! them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Float64Type, Schema, SchemaRef};

use crate::columns::typed::shortest_decimal_of_f32;
use crate::error::{Error, Result};
use crate::source::config::SourceConfig;
use crate::source::sample_id::sample_id;
use crate::source::units::InputFile;

/// Name of the key column in batches.
pub fn key_column_name(config: &SourceConfig) -> &str {
    config.columns.key.as_deref().unwrap_or("key")
}

/// Builds the schema of batches from the fields of the columns that are read.
pub fn build_batch_schema(columns: &Schema, key: &str) -> SchemaRef {
    let own = [("sample_id", DataType::UInt64), ("source_row", DataType::UInt64), (key, DataType::Utf8)];
    let own = own.into_iter().map(|(name, data_type)| Arc::new(Field::new(name, data_type, false)));
    let rest = columns.fields().iter().filter(|field| field.name() != key).cloned();
    Arc::new(Schema::new(own.chain(rest).collect::<Vec<_>>()))
}

/// Adds `sample_id`, `source_row` and a key column without nulls in front of a batch that starts at
/// `first_row`.
///
/// # Errors
/// If a column is missing or its type differs from the first file.
pub fn add_identity_columns(
    batch: &RecordBatch,
    file: &InputFile,
    first_row: u64,
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let rows = first_row..first_row + batch.num_rows() as u64;
    let key = schema.field(2).name();
    let ids = UInt64Array::from_iter_values(rows.clone().map(|row| sample_id(&file.identity, row)));
    let keys = match batch.column_by_name(key) {
        Some(column) => fill_null_keys(column, file, key, first_row)?,
        None => StringArray::from_iter_values(rows.clone().map(|row| format!("{}#{row}", file.uri))),
    };
    let mut columns: Vec<ArrayRef> =
        vec![Arc::new(ids), Arc::new(UInt64Array::from_iter_values(rows)), Arc::new(keys)];
    for field in schema.fields().iter().skip(3) {
        let column = batch.column_by_name(field.name()).ok_or_else(|| Error::Read {
            file: file.uri.clone(),
            problem: format!("column `{}` has vanished; the file changed while it was read", field.name()),
        })?;
        columns.push(convert_column(column, field.data_type())?);
    }
    RecordBatch::try_new(schema.clone(), columns).map_err(|e| Error::Read {
        file: file.uri.clone(),
        problem: format!("its columns differ from those of the source's first file: {e}"),
    })
}

/// True if values of one type can be converted to another, because writers disagree: texts and
/// bytes with short or long offsets; smaller integers to larger ones; integers to floats (pandas
/// writes integers as floats where one is missing); 32-bit floats to the 64-bit floats of their
/// shortest decimals.
pub fn is_convertible(from: &DataType, to: &DataType) -> bool {
    let texts = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View];
    let bytes = [DataType::Binary, DataType::LargeBinary, DataType::BinaryView];
    let numbers = match to {
        DataType::Int64 => from.is_signed_integer(),
        DataType::Float64 => from.is_integer() || *from == DataType::Float32,
        _ => false,
    };
    from == to || numbers || [texts, bytes].iter().any(|kinds| kinds.contains(from) && kinds.contains(to))
}

/// Converts a column to the type that the first file has, if it is [convertible](is_convertible).
fn convert_column(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if !is_convertible(column.data_type(), to) {
        return Ok(column.clone());
    }
    let values = arrow::compute::cast(column, to)?;
    Ok(match (column.data_type(), to) {
        (DataType::Float32, DataType::Float64) => {
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(shortest_decimal_of_f32))
        }
        _ => values,
    })
}

/// Keys as strings; null keys become `<file>#<row>`.
fn fill_null_keys(column: &ArrayRef, file: &InputFile, key: &str, first_row: u64) -> Result<StringArray> {
    let text = arrow::compute::cast(column, &DataType::Utf8).map_err(|_| Error::ColumnType {
        file: file.uri.clone(),
        column: key.to_owned(),
        config_key: "source.columns.key".into(),
        found: column.data_type().to_string(),
        expected: "strings or integers",
    })?;
    let text = text.as_string::<i32>();
    if text.null_count() == 0 {
        return Ok(text.clone());
    }
    let keys = (0..text.len()).zip(first_row..).map(|(i, row)| match text.is_valid(i) {
        true => text.value(i).to_owned(),
        false => format!("{}#{row}", file.uri),
    });
    Ok(StringArray::from_iter_values(keys))
}
