//! What Parquet files have in all: rows, and histograms of sizes and captions. No image is read.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidemill_data::Columns;
use tidemill_data::inspect::Statistics;

use super::arguments::MAX_HISTOGRAM_ROWS;
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// What local Parquet files have in all.
pub struct ParquetSummary {
    pub rows: i64,
    pub row_groups: usize,
    pub histograms: Statistics,
}

/// Counts rows, and draws histograms of these columns' sizes and captions.
///
/// # Errors
/// If a file cannot be read.
pub fn summarize_parquet(
    files: &[PathBuf],
    columns: &Columns,
    reporter: &Reporter,
) -> Result<ParquetSummary> {
    let mut summary = ParquetSummary { rows: 0, row_groups: 0, histograms: Statistics::default() };
    for file in files {
        let reader = open_reader(file)?;
        summary.rows += reader.metadata().file_metadata().num_rows();
        summary.row_groups += reader.metadata().num_row_groups();
        add_statistics(&mut summary.histograms, reader, columns, file)?;
    }
    if summary.histograms.rows >= MAX_HISTOGRAM_ROWS {
        reporter.report(format!("of the first {} rows, by their columns:", summary.histograms.rows));
    }
    summary.histograms.bars().iter().for_each(|line| reporter.report(line));
    Ok(summary)
}

fn open_reader(file: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let handle = File::open(file).map_err(|e| read_error(file, &e.to_string()))?;
    ParquetRecordBatchReaderBuilder::try_new(handle).map_err(|e| read_error(file, &e.to_string()))
}

/// Adds the rows of a file to the statistics, up to [`MAX_HISTOGRAM_ROWS`] in all.
fn add_statistics(
    statistics: &mut Statistics,
    reader: ParquetRecordBatchReaderBuilder<File>,
    columns: &Columns,
    file: &Path,
) -> Result<()> {
    let schema = reader.schema().clone();
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
        statistics.add(&batch, columns, None)?;
    }
    Ok(())
}

fn read_error(file: &Path, problem: &str) -> Error {
    Error::Missing {
        what: file.display().to_string(),
        problem: problem.to_string(),
        hint: "give a Parquet file, a folder of them, or a dataset's folder".into(),
    }
}
