//! `tidemill bench prepare`: the arguments and the report.

use std::path::PathBuf;

use serde_json::{Value, json};
use tidemill_store::RowCounts;

use super::measure::{median, timed};
use super::prepare_bench::PrepareBench;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::verbs::shared_arguments::RunArgs;

/// Arguments of `tidemill bench prepare`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// Folder for the prepared rows, one Parquet file per unit. Existing files are overwritten.
    /// Without it, the rows are discarded.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// How often to repeat the work; the median is reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Number of rows for measuring the parts on one core; 0 skips this.
    #[arg(long, default_value_t = 256)]
    pub sample: usize,
}

/// Prepares the rows of the source and returns the rate.
///
/// # Errors
/// If the input is refused, or a file cannot be read or written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    run.validate_source()?;
    let source = run.source()?;
    let units = source.units().map_err(|e| run.locate(e))?;
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::Write { path: folder.display().to_string(), source })?;
    }
    let bench = PrepareBench {
        source: &*source,
        prepare: &run.prepare()?,
        units: &units,
        output: args.output.as_deref(),
    };

    let workers = *run.file.engine.prepare.workers.resolve_range().end();
    let rows: Option<u64> = units.iter().map(|unit| unit.span.rows()).sum();
    let progress = reporter.start_progress("prepare", "rows", rows.map(|rows| rows * u64::from(args.repeat)));
    let mut rates = Vec::new();
    let mut counts = RowCounts::default();
    for _ in 0..args.repeat {
        let (pass, time) = timed(|| bench.prepare_all(workers, &progress))?;
        rates.push(pass.read as f64 / time.as_secs_f64().max(1e-9));
        counts = pass;
    }
    progress.finish();

    let rate = median(rates.clone());
    reporter.report(format!("{rate:.1} rows/s: {} rows on {workers} threads", counts.read));
    let parts = if args.sample > 0 { bench.time_parts(args.sample)? } else { Vec::new() };
    for (part, milliseconds) in &parts {
        reporter.report(format!("  {part:<10} {milliseconds:>7.3} ms per row on one core"));
    }
    Ok(json!({
        "verb": "bench prepare",
        "rows": {
            "read": counts.read, "kept": counts.kept,
            "rejected": counts.total_rejected(), "quarantined": counts.total_quarantined(),
        },
        "units": units.len(),
        "workers": workers,
        "output": args.output,
        "rows_per_second": rate,
        "rates": rates,
        "parts_ms": parts.into_iter().map(|(part, ms)| (part.to_owned(), ms.into()))
            .collect::<serde_json::Map<String, Value>>(),
    }))
}
