//! Reads a source and returns its rows.

use std::path::Path;

use crate::support;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use tidemill_data::{Columns, Format, OneOrMany};
use tidemill_data::{Error, Source, SourceConfig};

pub fn config(format: Format, uri: &Path) -> SourceConfig {
    SourceConfig {
        format,
        uri: OneOrMany::One(uri.display().to_string()),
        columns: Columns { key: Some("key".into()), ..Columns::default() },
        rows_per_unit: 20,
        rows_per_batch: 7,
        ..SourceConfig::default()
    }
}

pub fn read(source: &dyn Source) -> Result<Vec<RecordBatch>, Error> {
    let mut batches = Vec::new();
    for unit in source.units()? {
        for batch in source.read(&unit)? {
            batches.push(batch?);
        }
    }
    Ok(batches)
}

/// Key, caption, image and error of every row.
pub type Row = (String, Option<String>, Option<Vec<u8>>, Option<String>);

pub fn rows(batches: &[RecordBatch]) -> Vec<Row> {
    let text = |batch: &RecordBatch, name: &str, row: usize| -> Option<String> {
        let column = batch.column_by_name(name)?.as_string::<i32>();
        column.is_valid(row).then(|| column.value(row).to_owned())
    };
    let row = |batch: &RecordBatch, row: usize| {
        let images = arrow::compute::cast(&batch["image"], &DataType::LargeBinary).unwrap();
        let images = images.as_binary::<i64>();
        let image = images.is_valid(row).then(|| images.value(row).to_vec());
        let key = text(batch, "key", row).unwrap();
        (key, text(batch, "caption", row), image, text(batch, "source_error", row))
    };
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |i| row(batch, i))).collect()
}

pub fn read_rows(config: &SourceConfig) -> Vec<Row> {
    let source = support::open(config).unwrap();
    rows(&read(source.as_ref()).unwrap())
}
