//! Encodes units on a Ray cluster.

use tidemill_data::InputUnit;

use super::local_pass::count_rows;
use crate::engine::dataset_sink::DatasetSink;
use crate::engine::ray::RayEngine;
use crate::engine::stop_signal::StopSignal;
use crate::engine::{BadRows, RunSummary, check_bad_fraction};
use crate::error::Result;
use crate::progress::Reporter;
use crate::run_file::Run;

/// Encodes the missing units on Ray. Returns `None` if all units are committed.
///
/// # Errors
/// If the cluster fails, too many rows are unreadable, or a signal stops the work.
pub fn run_ray_pass(
    run: &Run,
    sink: &DatasetSink,
    units: &[InputUnit],
    reporter: &Reporter,
) -> Result<Option<RunSummary>> {
    let (missing, counts_before) = sink.find_uncommitted(units)?;
    if missing.is_empty() {
        check_bad_fraction(&counts_before, run.file.engine.max_bad_fraction, &BadRows::default())?;
        return Ok(None);
    }
    let (mut run, stop) = (run.clone(), StopSignal::watch());
    let encode = &mut run.file.engine.encode;
    if encode.threads == 0 {
        // An encoder on a cluster may use only its own CPUs, not all of its node.
        encode.threads = (encode.cpus as usize).max(1);
    }
    let (ticket, config) = (sink.to_ticket(&run)?, &run.file.engine);
    let engine = RayEngine { ticket: &ticket, config, sink, stop: &stop, reporter };
    let progress = reporter.start_progress("preprocess", "rows", count_rows(&missing));
    let summary = engine.run(units, &progress);
    progress.finish();
    Ok(Some(summary?))
}
