//! What a latent dataset contains: counts and tensor shapes from the manifest, histograms and lists
//! from its rows.

use serde_json::{Value, json};
use tidemill_data::inspect::Statistics;
use tidemill_data::status::{QUARANTINED, REJECTED};
use tidemill_data::{ClipTokenizer, Columns};
use tidemill_store::dataset::row_listing::{format_table, list_rows};
use tidemill_store::{Dataset, RoundingError, Verification};

use super::arguments::{Args, MAX_HISTOGRAM_ROWS, UnusedStatus};
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// The largest number of damaged files that a message names.
const MAX_NAMED_FILES: usize = 10;

/// Row groups of text embeddings whose rounding errors are measured, unless everything is read
/// anyway.
const ROUNDING_ROW_GROUPS: usize = 4;

/// Shows a dataset. The tokenizer is needed for the histogram of caption lengths in tokens.
///
/// # Errors
/// If the dataset cannot be read, or `--verify` finds damaged files.
pub fn inspect_dataset(
    uri: &str,
    tokenizer: Option<&ClipTokenizer>,
    args: &Args,
    reporter: &Reporter,
) -> Result<Value> {
    let dataset = Dataset::open(uri)?;
    report_manifest(uri, &dataset, reporter)?;
    // Verification comes first because it names all damaged files. What follows would stop at the
    // first of them.
    let verification = if args.verify { Some(verify(&dataset, reporter)?) } else { None };
    let row_groups = if args.verify { usize::MAX } else { ROUNDING_ROW_GROUPS };
    let rounding = dataset.measure_rounding_error(row_groups)?;
    if let Some(RoundingError { rows, mean, worst }) = rounding {
        let (mean, worst) = (100.0 * mean, 100.0 * worst);
        let line = format!("rounding errors of {rows} rows: {mean:.2} % on average, {worst:.2} % at most");
        reporter.report(format!("    {line}"));
    }
    let statistics = collect_statistics(&dataset, tokenizer)?;
    if statistics.rows >= MAX_HISTOGRAM_ROWS {
        reporter.report(format!("of the first {} kept rows:", statistics.rows));
    }
    statistics.bars().iter().for_each(|line| reporter.report(line));
    let totals = dataset.totals()?;
    let rows = &totals.rows;
    let mut result = json!({
        "verb": "inspect", "kind": "dataset", "path": uri, "snapshot": dataset.snapshot_number(),
        "digest": dataset.manifest_digest(), "totals": totals, "spec": dataset.spec(),
        "rows": {
            "read": rows.read, "kept": rows.kept, "rejected": rows.total_rejected(),
            "quarantined": rows.total_quarantined(),
        },
        "histograms": statistics,
        "text_rounding": rounding,
    });
    if let Some(status) = args.list {
        result["list"] = list_unused_rows(&dataset, status, args, reporter)?;
    }
    if let Some(verification) = verification {
        result["verification"] = json!(verification);
    }
    Ok(result)
}

/// Lists rows that are rejected or quarantined.
fn list_unused_rows(
    dataset: &Dataset,
    status: UnusedStatus,
    args: &Args,
    reporter: &Reporter,
) -> Result<Value> {
    let status = match status {
        UnusedStatus::Rejected => REJECTED,
        UnusedStatus::Quarantined => QUARANTINED,
    };
    let rows = list_rows(dataset, status, args.reason.as_deref(), args.limit)?;
    reporter.report(format!("{status}, the first {} at most:", args.limit));
    format_table(&rows).iter().for_each(|line| reporter.report(format!("  {line}")));
    Ok(json!(rows))
}

/// Compares every file with its commit.
fn verify(dataset: &Dataset, reporter: &Reporter) -> Result<Verification> {
    let progress = reporter.start_progress("verify", "bytes", dataset.totals()?.bytes);
    let mut done = 0;
    let verification = dataset.verify(|bytes| {
        progress.add(bytes - done);
        done = bytes;
    });
    progress.finish();
    let verification = verification?;
    if verification.damaged.is_empty() {
        let (files, bytes) = (verification.files, verification.bytes);
        reporter.report(format!("  {files} files, {bytes} bytes: all as committed"));
        return Ok(verification);
    }
    let named = verification.damaged.iter().take(MAX_NAMED_FILES);
    let named = named.map(|damage| format!("{} {} (commit {})", damage.path, damage.problem, damage.commit));
    Err(Error::Damaged {
        damaged: verification.damaged.len(),
        files: verification.files,
        uri: dataset.location().uri().to_owned(),
        shown: named.collect::<Vec<_>>().join("; "),
    })
}

/// Reports counts, buckets and tensor shapes, as the manifest has them.
fn report_manifest(uri: &str, dataset: &Dataset, reporter: &Reporter) -> Result<()> {
    let (totals, spec) = (dataset.totals()?, dataset.spec());
    let rows = &totals.rows;
    reporter.report(format!(
        "{uri}: latent dataset, snapshot {}, {} units, {} files, {:.1} MB",
        dataset.snapshot_number(),
        totals.units,
        totals.files,
        totals.bytes as f64 / 1e6
    ));
    reporter.report(format!(
        "  {} rows read = {} kept + {} rejected + {} quarantined",
        rows.read,
        rows.kept,
        rows.total_rejected(),
        rows.total_quarantined()
    ));
    for (status, reasons) in [("rejected", &rows.rejected), ("quarantined", &rows.quarantined)] {
        for (reason, n) in reasons {
            reporter.report(format!("    {status} {reason}: {n}"));
        }
    }
    for (bucket, tensor) in &spec.latents {
        reporter.report(format!(
            "  latents-{bucket}: {} {:?}, {} training rows, {} held out",
            tensor.dtype, tensor.shape, totals.training[bucket], totals.validation[bucket]
        ));
    }
    for (column, tensor) in spec.text_columns() {
        reporter.report(format!("  {column}: {} {:?}", tensor.dtype, tensor.shape));
    }
    if spec.has_time_ids {
        reporter.report("  time_ids: sizes of image and crop, for SDXL");
    }
    Ok(())
}

/// Histograms of the first kept rows.
fn collect_statistics(dataset: &Dataset, tokenizer: Option<&ClipTokenizer>) -> Result<Statistics> {
    let columns =
        Columns { width: Some("width".into()), height: Some("height".into()), ..Columns::default() };
    let mut statistics = Statistics::default();
    for batch in dataset.read_rows(&["width", "height", "caption", "status"]) {
        statistics.add(&batch?, &columns, tokenizer)?;
        if statistics.rows >= MAX_HISTOGRAM_ROWS {
            break;
        }
    }
    Ok(statistics)
}
