//! Prompts in CSV, TSV and Parquet.

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::column_names::ColumnNames;

/// Prompts and their categories.
pub type Rows = Vec<(String, Option<String>)>;

/// Reads a table of text with a header line.
pub fn csv_rows(bytes: &[u8], delimiter: u8, columns: ColumnNames) -> Result<Rows, String> {
    let mut builder = csv::ReaderBuilder::new();
    // Tab-separated values have no quoting; a quotation mark is part of a prompt.
    builder.delimiter(delimiter).flexible(true).quoting(delimiter != b'\t');
    let mut reader = builder.from_reader(bytes);
    let header = reader.headers().map_err(|e| e.to_string())?;
    let names: Vec<String> =
        header.iter().map(|name| name.trim_start_matches('\u{feff}').trim().to_owned()).collect();
    let (prompt, category) = columns.find(&names)?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| e.to_string())?;
        let field = |at: usize| record.get(at).map(str::to_owned);
        rows.push((field(prompt).unwrap_or_default(), category.and_then(field)));
    }
    Ok(rows)
}

/// Reads a Parquet file.
pub fn parquet_rows(bytes: Bytes, columns: ColumnNames) -> Result<Rows, String> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|e| e.to_string())?;
    let names: Vec<String> = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
    let (prompt, category) = columns.find(&names)?;
    let mut rows = Vec::new();
    for batch in builder.build().map_err(|e| e.to_string())? {
        let batch = batch.map_err(|e| e.to_string())?;
        let text = |at: usize| {
            cast(batch.column(at), &DataType::Utf8).map_err(|_| format!("column `{}` is no text", names[at]))
        };
        let prompts = text(prompt)?;
        let categories = category.map(text).transpose()?;
        let value = |column: &dyn Array, row: usize| {
            column.is_valid(row).then(|| column.as_string::<i32>().value(row).to_owned())
        };
        rows.extend((0..batch.num_rows()).map(|row| {
            let category = categories.as_ref().and_then(|column| value(column, row));
            (value(&prompts, row).unwrap_or_default(), category)
        }));
    }
    Ok(rows)
}
