//! Histograms of Parquet files from their columns of sizes and captions. No image is read.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::datatypes::{DataType, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use tidemill_data::inspect::Statistics;
use tidemill_data::{Columns, OneOrMany};

use super::arguments::MAX_HISTOGRAM_ROWS;
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// The histograms of local Parquet files, and the number of their row groups and rows.
///
/// # Errors
/// If a file cannot be read.
pub fn summarize_parquet(files: &[PathBuf], reporter: &Reporter) -> Result<Value> {
    let (mut rows, mut row_groups, mut statistics) = (0, 0, Statistics::default());
    for file in files {
        let reader = open_reader(file)?;
        rows += reader.metadata().file_metadata().num_rows();
        row_groups += reader.metadata().num_row_groups();
        add_statistics(&mut statistics, reader, file)?;
    }
    if statistics.rows >= MAX_HISTOGRAM_ROWS {
        reporter.report(format!("of the first {} rows, by their columns:", statistics.rows));
    }
    statistics.bars().iter().for_each(|line| reporter.report(line));
    Ok(json!({ "rows": rows, "row_groups": row_groups, "histograms": statistics }))
}

fn open_reader(file: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let handle = File::open(file).map_err(|e| read_error(file, &e.to_string()))?;
    ParquetRecordBatchReaderBuilder::try_new(handle).map_err(|e| read_error(file, &e.to_string()))
}

/// Adds the rows of a file to the statistics, up to [`MAX_HISTOGRAM_ROWS`] in all.
fn add_statistics(
    statistics: &mut Statistics,
    reader: ParquetRecordBatchReaderBuilder<File>,
    file: &Path,
) -> Result<()> {
    let schema = reader.schema().clone();
    let columns = find_usual_columns(&schema);
    let sizes = [columns.width.as_ref(), columns.height.as_ref()].into_iter().flatten();
    let wanted = sizes.chain(columns.caption.as_slice());
    let roots: Vec<usize> = wanted.filter_map(|name| schema.index_of(name).ok()).collect();
    let rows_left = MAX_HISTOGRAM_ROWS.saturating_sub(statistics.rows);
    if roots.is_empty() || rows_left == 0 {
        return Ok(());
    }
    let mask = ProjectionMask::roots(reader.parquet_schema(), roots);
    let limit = usize::try_from(rows_left).unwrap_or(usize::MAX);
    let batches = reader.with_projection(mask).with_limit(limit).build();
    for batch in batches.map_err(|e| read_error(file, &e.to_string()))? {
        let batch = batch.map_err(|e| read_error(file, &e.to_string()))?;
        statistics.add(&batch, &columns, None)?;
    }
    Ok(())
}

/// Finds the columns for sizes and captions by their usual names, in upper or lower case, if their
/// types fit.
fn find_usual_columns(schema: &Schema) -> Columns {
    let find = |names: &[&str], fits: fn(&DataType) -> bool| {
        let usual = |name: &str| names.iter().any(|usual| usual.eq_ignore_ascii_case(name));
        let found = schema.fields().iter().find(|field| usual(field.name()) && fits(field.data_type()));
        found.map(|field| field.name().clone())
    };
    let text: fn(&DataType) -> bool =
        |t| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    Columns {
        width: find(&["width"], DataType::is_numeric),
        height: find(&["height"], DataType::is_numeric),
        caption: OneOrMany::Many(find(&["caption", "text"], text).into_iter().collect()),
        ..Columns::default()
    }
}

fn read_error(file: &Path, problem: &str) -> Error {
    Error::Missing {
        what: file.display().to_string(),
        problem: problem.to_string(),
        hint: "give a Parquet file, a folder of them, or a dataset's folder".into(),
    }
}
