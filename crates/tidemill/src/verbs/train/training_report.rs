//! The result of `tidemill train`, as JSON and as a line for people.

use std::path::Path;

use serde_json::{Value, json};
use tidemill_store::RowCounts;
use tidemill_train::TrainOutcome;

use crate::online::RowAccounting;
use crate::progress::Reporter;
use crate::run_file::Run;

/// The result of the verb. `ledger` has the counts and times of the pairs of online training.
pub fn training_report(run: &Run, outcome: &TrainOutcome, accounting: Option<&RowAccounting>) -> Value {
    let to_json = |counts: RowCounts| {
        json!({
            "read": counts.read, "kept": counts.kept,
            "rejected": counts.total_rejected(), "quarantined": counts.total_quarantined(),
        })
    };
    json!({
        "verb": "train",
        "output": run.output(),
        "steps": outcome.steps,
        "finished": outcome.finished,
        "resumed_at": outcome.resumed_at,
        "loss": outcome.loss,
        "images_per_second": outcome.images_per_second,
        "seconds": outcome.seconds,
        "skipped_rows": outcome.skipped_rows,
        "skipped_steps": outcome.skipped_steps,
        "rollbacks": outcome.rollbacks,
        "checkpoint_stall_seconds": outcome.checkpoint_seconds,
        "rows": accounting.map(|accounting| to_json(accounting.counts())),
        "stages": accounting.map(RowAccounting::stage_work),
    })
}

/// Reports to people how training ended.
pub fn print_training_end(output: &str, report: &Value, reporter: &Reporter) {
    let end = match report["finished"] == true {
        true => "trained",
        false => "stopped by a signal (run the same command again to continue) after",
    };
    reporter.report(format!(
        "{end} {} steps, {:.1} img/s, mean loss of the last steps {}; metrics in {}",
        report["steps"],
        report["images_per_second"].as_f64().unwrap_or(0.0),
        report["loss"].as_f64().map_or_else(|| "unknown".into(), |loss| format!("{loss:.4}")),
        Path::new(output).join("metrics.jsonl").display()
    ));
}
