//! What Parquet files hold: rows and columns from their footers, histograms from the columns of sizes and captions. No
//! image is read.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::datatypes::{DataType, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use tidemill_data::inspect::Statistics;
use tidemill_data::{Columns, OneOrMany};

use super::command::MOST_ROWS;
use crate::error::{Error, Result};
use crate::progress::Reporter;

pub fn inspect(path: &Path, reporter: &Reporter) -> Result<Value> {
    let files = parquet_files(path)?;
    let (mut rows, mut bytes, mut row_groups) = (0, 0, 0);
    let (mut columns, mut statistics) = (Vec::new(), Statistics::default());
    for file in &files {
        let reader = open(file)?;
        rows += reader.metadata().file_metadata().num_rows();
        row_groups += reader.metadata().num_row_groups();
        bytes += file.metadata().map_or(0, |m| m.len());
        if columns.is_empty() {
            let fields = reader.schema().fields().iter();
            columns = fields.map(|f| (f.name().clone(), f.data_type().to_string())).collect();
        }
        add(&mut statistics, reader, file)?;
    }
    reporter.report(format!(
        "{}: {} Parquet files, {rows} rows in {row_groups} row groups, {:.1} MB",
        path.display(),
        files.len(),
        bytes as f64 / 1e6
    ));
    for (name, data_type) in &columns {
        reporter.report(format!("  {name}: {data_type}"));
    }
    if statistics.rows >= MOST_ROWS {
        reporter.report(format!("of the first {} rows, as the columns say:", statistics.rows));
    }
    statistics.bars().iter().for_each(|line| reporter.report(line));
    let columns: serde_json::Map<String, Value> = columns.into_iter().map(|(n, t)| (n, t.into())).collect();
    Ok(json!({
        "verb": "inspect", "kind": "parquet", "path": path, "files": files.len(), "rows": rows,
        "row_groups": row_groups, "bytes": bytes, "columns": columns, "histograms": statistics,
    }))
}

fn open(file: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let handle = File::open(file).map_err(|e| unreadable(file, &e.to_string()))?;
    ParquetRecordBatchReaderBuilder::try_new(handle).map_err(|e| unreadable(file, &e.to_string()))
}

/// Adds the file's rows, as far as there is room.
fn add(
    statistics: &mut Statistics,
    reader: ParquetRecordBatchReaderBuilder<File>,
    file: &Path,
) -> Result<()> {
    let schema = reader.schema().clone();
    let columns = usual_columns(&schema);
    let sizes = [columns.width.as_ref(), columns.height.as_ref()].into_iter().flatten();
    let wanted = sizes.chain(columns.caption.as_slice());
    let roots: Vec<usize> = wanted.filter_map(|name| schema.index_of(name).ok()).collect();
    let room = MOST_ROWS.saturating_sub(statistics.rows);
    if roots.is_empty() || room == 0 {
        return Ok(());
    }
    let mask = ProjectionMask::roots(reader.parquet_schema(), roots);
    let limit = usize::try_from(room).unwrap_or(usize::MAX);
    let batches = reader.with_projection(mask).with_limit(limit).build();
    for batch in batches.map_err(|e| unreadable(file, &e.to_string()))? {
        let batch = batch.map_err(|e| unreadable(file, &e.to_string()))?;
        statistics.add(&batch, &columns, None)?;
    }
    Ok(())
}

/// Columns as they are usually called, in any case, if their types fit.
fn usual_columns(schema: &Schema) -> Columns {
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

fn unreadable(file: &Path, problem: &str) -> Error {
    Error::Missing {
        what: file.display().to_string(),
        problem: problem.to_string(),
        hint: "give a Parquet file, a folder of them, or a dataset's folder".into(),
    }
}

fn parquet_files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| unreadable(path, &e.to_string()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "parquet"))
        .collect();
    files.sort();
    if files.is_empty() {
        Err(unreadable(path, "it has no Parquet files and no dataset.json"))
    } else {
        Ok(files)
    }
}
