//! `tidemill inspect`: what a dataset, a Parquet source or a run file holds. Reads metadata only and never touches
//! libtorch.

use std::path::{Path, PathBuf};

use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Value, json};
use tidemill_store::Dataset;

use crate::error::{Error, Result};
use crate::reporter::Reporter;
use crate::run_file::Run;

/// Arguments of `tidemill inspect`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill inspect runs/quickstart/dataset\n  tidemill inspect data/scenes"
)]
pub struct Args {
    /// A dataset's folder, a run file (its dataset is looked at), a Parquet file, or a folder of them.
    pub path: PathBuf,
}

/// Says what the path holds.
///
/// # Errors
/// If there is nothing there, or it is neither dataset nor Parquet.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    if args.path.extension().is_some_and(|extension| extension == "toml") {
        return dataset(&Run::open(&args.path, &[])?.dataset(), reporter);
    }
    match args.path.join("dataset.json").is_file() {
        true => dataset(&args.path.display().to_string(), reporter),
        false => parquet(&args.path, reporter),
    }
}

fn dataset(uri: &str, reporter: &Reporter) -> Result<Value> {
    let dataset = Dataset::open(uri)?;
    let (totals, spec) = (dataset.totals(), dataset.spec());
    let rows = &totals.rows;
    reporter.say(format!(
        "{uri}: latent dataset, snapshot {}, {} units, {} files, {:.1} MB",
        dataset.manifest().number,
        totals.units,
        totals.files,
        totals.bytes as f64 / 1e6
    ));
    reporter.say(format!(
        "  {} rows read = {} kept + {} rejected + {} quarantined",
        rows.read,
        rows.kept,
        rows.total_rejected(),
        rows.total_quarantined()
    ));
    for (what, reasons) in [("rejected", &rows.rejected), ("quarantined", &rows.quarantined)] {
        for (reason, n) in reasons {
            reporter.say(format!("    {what} {reason}: {n}"));
        }
    }
    for (bucket, tensor) in &spec.latents {
        reporter.say(format!(
            "  latents-{bucket}: {} {:?}, {} training rows, {} held out",
            tensor.dtype, tensor.shape, totals.training[bucket], totals.validation[bucket]
        ));
    }
    reporter.say(format!("  text: {} {:?}", spec.text.dtype, spec.text.shape));
    Ok(json!({
        "verb": "inspect", "kind": "dataset", "path": uri, "snapshot": dataset.manifest().number,
        "digest": dataset.manifest().digest(), "totals": totals, "spec": spec,
        "rows": {
            "read": rows.read, "kept": rows.kept, "rejected": rows.total_rejected(),
            "quarantined": rows.total_quarantined(),
        },
    }))
}

fn parquet(path: &Path, reporter: &Reporter) -> Result<Value> {
    let files = parquet_files(path)?;
    let (mut rows, mut bytes, mut row_groups) = (0, 0, 0);
    let mut columns = Vec::new();
    for file in &files {
        let reader = open(file)?;
        let metadata = reader.metadata();
        rows += metadata.file_metadata().num_rows();
        row_groups += metadata.num_row_groups();
        bytes += file.metadata().map_or(0, |m| m.len());
        if columns.is_empty() {
            let schema = metadata.file_metadata();
            let schema = parquet_to_arrow_schema(schema.schema_descr(), schema.key_value_metadata());
            let schema = schema.map_err(|e| unreadable(file, &e.to_string()))?;
            columns = schema.fields().iter().map(|f| (f.name().clone(), f.data_type().to_string())).collect();
        }
    }
    reporter.say(format!(
        "{}: {} Parquet files, {rows} rows in {row_groups} row groups, {:.1} MB",
        path.display(),
        files.len(),
        bytes as f64 / 1e6
    ));
    for (name, data_type) in &columns {
        reporter.say(format!("  {name}: {data_type}"));
    }
    let columns: serde_json::Map<String, Value> = columns.into_iter().map(|(n, t)| (n, t.into())).collect();
    Ok(json!({
        "verb": "inspect", "kind": "parquet", "path": path, "files": files.len(), "rows": rows,
        "row_groups": row_groups, "bytes": bytes, "columns": columns,
    }))
}

fn open(file: &Path) -> Result<SerializedFileReader<std::fs::File>> {
    let handle = std::fs::File::open(file).map_err(|e| unreadable(file, &e.to_string()))?;
    SerializedFileReader::new(handle).map_err(|e| unreadable(file, &e.to_string()))
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
