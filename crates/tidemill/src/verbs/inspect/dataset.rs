//! What a latent dataset holds: its counts and forms from the manifest, histograms and lists from its rows.

use serde_json::{Value, json};
use tidemill_data::ClipTokenizer;
use tidemill_data::Columns;
use tidemill_data::inspect::Statistics;
use tidemill_data::status::{QUARANTINED, REJECTED};
use tidemill_store::dataset::row_listing as listing;
use tidemill_store::{Dataset, RoundingError, Verification};

use super::command::{Args, MOST_ROWS, Refused};
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Damaged files that a message names.
const DAMAGED_SHOWN: usize = 10;

/// Row groups of text whose rounding errors are looked at, unless everything is read anyway.
const ROUNDED_ROW_GROUPS: usize = 4;

pub fn inspect(
    uri: &str,
    tokenizer: Option<&ClipTokenizer>,
    args: &Args,
    reporter: &Reporter,
) -> Result<Value> {
    let dataset = Dataset::open(uri)?;
    report(uri, &dataset, reporter)?;
    // First, for it names all that is damaged, and not just what is come across first.
    let verification = if args.verify { Some(verify(&dataset, reporter)?) } else { None };
    let rounding =
        dataset.measure_rounding_error(if args.verify { usize::MAX } else { ROUNDED_ROW_GROUPS })?;
    if let Some(RoundingError { rows, mean, worst }) = rounding {
        let (mean, worst) = (100.0 * mean, 100.0 * worst);
        reporter.report(format!(
            "    rounding errors of {rows} rows: {mean:.2} % on average, {worst:.2} % at most"
        ));
    }
    let statistics = statistics(&dataset, tokenizer)?;
    if statistics.rows >= MOST_ROWS {
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
    if let Some(refused) = args.list {
        let status = match refused {
            Refused::Rejected => REJECTED,
            Refused::Quarantined => QUARANTINED,
        };
        let listed = listing::list_rows(&dataset, status, args.reason.as_deref(), args.limit)?;
        reporter.report(format!("{status}, the first {} at most:", args.limit));
        listing::format_table(&listed).iter().for_each(|line| reporter.report(format!("  {line}")));
        result["list"] = json!(listed);
    }
    if let Some(verification) = verification {
        result["verification"] = json!(verification);
    }
    Ok(result)
}

/// Compares every file with its commit.
fn verify(dataset: &Dataset, reporter: &Reporter) -> Result<Verification> {
    let progress = reporter.start_progress("verify", "bytes", dataset.totals()?.bytes);
    let mut done = 0;
    let found = dataset.verify(|bytes| {
        progress.add(bytes - done);
        done = bytes;
    });
    progress.finish();
    let found = found?;
    if found.damaged.is_empty() {
        reporter.report(format!("  {} files, {} bytes: all as committed", found.files, found.bytes));
        return Ok(found);
    }
    let shown = found.damaged.iter().take(DAMAGED_SHOWN);
    let shown = shown.map(|damage| format!("{} {} (commit {})", damage.path, damage.problem, damage.commit));
    Err(Error::Damaged {
        damaged: found.damaged.len(),
        files: found.files,
        uri: dataset.location().uri().to_owned(),
        shown: shown.collect::<Vec<_>>().join("; "),
    })
}

fn report(uri: &str, dataset: &Dataset, reporter: &Reporter) -> Result<()> {
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
    for (what, reasons) in [("rejected", &rows.rejected), ("quarantined", &rows.quarantined)] {
        for (reason, n) in reasons {
            reporter.report(format!("    {what} {reason}: {n}"));
        }
    }
    for (bucket, tensor) in &spec.latents {
        reporter.report(format!(
            "  latents-{bucket}: {} {:?}, {} training rows, {} held out",
            tensor.dtype, tensor.shape, totals.training[bucket], totals.validation[bucket]
        ));
    }
    reporter.report(format!("  text: {} {:?}", spec.text.dtype, spec.text.shape));
    Ok(())
}

/// Of the kept rows, from the first on.
fn statistics(dataset: &Dataset, tokenizer: Option<&ClipTokenizer>) -> Result<Statistics> {
    let columns =
        Columns { width: Some("width".into()), height: Some("height".into()), ..Columns::default() };
    let mut statistics = Statistics::default();
    for batch in dataset.read_rows(&["width", "height", "caption", "status"]) {
        statistics.add(&batch?, &columns, tokenizer)?;
        if statistics.rows >= MOST_ROWS {
            break;
        }
    }
    Ok(statistics)
}
