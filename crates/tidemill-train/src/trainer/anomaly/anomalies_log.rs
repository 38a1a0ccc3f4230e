//! `anomalies.jsonl`: one line with all sample ids for each abnormal step.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::Error;
use crate::metrics::StepMetrics;

/// The name of the file in the run's output folder.
pub(super) const ANOMALIES_FILE: &str = "anomalies.jsonl";

/// Appends a step to the file in the folder `output`.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn append_anomaly(output: &Path, metrics: &StepMetrics, samples: &[u64]) -> Result<(), Error> {
    let StepMetrics { step, loss, grad_norm, .. } = metrics;
    // JSON has no NaN and no infinity, so these numbers are strings.
    let line = serde_json::json!({
        "step": step, "loss": loss.to_string(), "grad_norm": grad_norm.to_string(), "samples": samples,
    });
    let path = output.join(ANOMALIES_FILE);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| writeln!(file, "{line}")).map_err(Error::io(&path))
}
