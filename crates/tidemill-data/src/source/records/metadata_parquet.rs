//! The rows of an image folder's `metadata.parquet`. It is read whole: it describes images and has
//! none.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value};
use tidemill_io::{block_on, uri};

use crate::error::{Error, Result};
use crate::source::parquet::{reader_panicked, to_read_error};
use crate::source::records::record::Record;
use crate::source::units::InputFile;

/// The rows of the file, numbered from 0.
///
/// # Errors
/// If the file cannot be read.
pub fn read_records(file: &InputFile) -> Result<impl Iterator<Item = Record> + Send + use<>> {
    // On some damaged files the reader panics.
    let rows = catch_unwind(AssertUnwindSafe(|| parse_file(file)));
    Ok(rows.unwrap_or_else(|_| Err(to_read_error(file, reader_panicked())))?.into_iter())
}

fn parse_file(file: &InputFile) -> Result<Vec<Record>> {
    let address = uri::parse(&file.uri)?;
    let whole = block_on(address.get_range(0..file.size, file.e_tag.as_deref()))?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(whole).and_then(|builder| builder.build());
    let mut lines = arrow_json::LineDelimitedWriter::new(Vec::new());
    for batch in reader.map_err(|e| to_read_error(file, e))? {
        lines.write(&batch?)?;
    }
    lines.finish()?;
    let lines = lines.into_inner();
    let rows: Result<Vec<Record>, serde_json::Error> = (0..)
        .zip(lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()))
        .map(parse_row)
        .collect();
    rows.map_err(|e| Error::Read { file: file.uri.clone(), problem: e.to_string() })
}

fn parse_row((row, line): (u64, &[u8])) -> serde_json::Result<Record> {
    let fields: Map<String, Value> = serde_json::from_slice(line)?;
    Ok(Record { row, fields, text_bytes: line.len(), ..Record::default() })
}
