//! The result of `tidemill preprocess`, for people and as JSON.

use std::sync::Arc;

use bytesize::ByteSize;
use serde_json::{Value, json};
use tidemill_store::Dataset;

use crate::engine::EngineKind;
use crate::engine::{EncodedCounts, RunSummary};
use crate::error::Result;
use crate::progress::Reporter;
use crate::run_file::Run;

/// What this command has done.
#[derive(Default)]
pub struct CompletedWork {
    /// The passes on the cluster and on this machine that encoded. Empty if all units were
    /// committed.
    pub summaries: Vec<RunSummary>,
    /// The pass that left out duplicates. It only copies what is encoded.
    pub copied: Option<RunSummary>,
    /// The images and captions that this process has encoded.
    pub encoded: Arc<EncodedCounts>,
}

/// Reports the work of this command and what the dataset contains now.
///
/// # Errors
/// If the dataset cannot be read.
pub fn report(run: &Run, units: usize, work: &CompletedWork, reporter: &Reporter) -> Result<Value> {
    let totals = Dataset::open(&run.dataset())?.totals()?;
    let counts = &totals.rows;
    let (rejected, quarantined) = (counts.total_rejected(), counts.total_quarantined());
    // Encoders of a cluster do not send these counts.
    let encoded = (run.file.engine.kind == EngineKind::Local).then_some(&*work.encoded);
    let this_run = work.summaries.first().map(|summary| report_pass(summary, encoded, reporter));
    if let Some(copied) = &work.copied {
        let (rows, seconds) = (copied.counts.read, copied.seconds);
        reporter.report(format!("{rows} rows copied without their duplicates in {seconds:.1} s"));
    }
    if work.summaries.is_empty() && work.copied.is_none() {
        reporter.report("nothing to do: every unit is committed");
    }
    reporter.report(format!(
        "{}: {} rows read = {} kept + {rejected} rejected + {quarantined} quarantined, {} units, {:.1} MB",
        run.dataset(),
        counts.read,
        counts.kept,
        totals.units,
        totals.bytes as f64 / 1e6
    ));
    for (status, reasons) in [("rejected", &counts.rejected), ("quarantined", &counts.quarantined)] {
        for (reason, rows) in reasons {
            reporter.report(format!("  {status} {reason}: {rows}"));
        }
    }
    let units_done = work.summaries.iter().map(|summary| summary.units).sum::<usize>();
    Ok(json!({
        "verb": "preprocess",
        "dataset": run.dataset(),
        "units": { "total": units, "done": units_done },
        "rows": { "read": counts.read, "kept": counts.kept, "rejected": rejected, "quarantined": quarantined },
        "rejected": counts.rejected,
        "quarantined": counts.quarantined,
        "bytes": totals.bytes,
        "this_run": this_run,
    }))
}

/// Reports the rate of one pass, the utilization of its stages and its memory.
fn report_pass(summary: &RunSummary, encoded: Option<&EncodedCounts>, reporter: &Reporter) -> Value {
    let (rows, seconds) = (summary.counts.read, summary.seconds);
    let rate = rows as f64 / seconds.max(1e-9);
    let stages = summary.utilization.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    reporter.report(format!("{rows} rows in {seconds:.1} s: {rate:.1} rows/s"));
    if let Some(memory) = summary.memory {
        let (peak, limit) = (ByteSize(memory.peak), ByteSize(memory.limit));
        reporter.report(format!("  {stages}; at most {peak} of {limit} in flight"));
    }
    json!({
        "units": summary.units, "rows": rows, "seconds": seconds, "rows_per_second": rate,
        "stages": summary.utilization, "memory": summary.memory, "encoded": encoded,
    })
}
