//! `tidemill gc`: removes files of a dataset that nobody can read any more.

use std::time::Duration;

use serde_json::{Value, json};
use tidemill_store::GarbageCollector;

use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::verbs::shared_arguments::RunArgs;

/// Arguments of `tidemill gc`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill gc run.toml --dry-run\n  tidemill gc run.toml --keep 1 --older-than-hours 0"
)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// Number of the newest snapshots to keep. A training run always resumes with the snapshot that
    /// it started with.
    #[arg(long, default_value_t = 2)]
    pub keep: usize,
    /// Keep files that are younger than this, and all units with the settings of a younger unit:
    /// another process may be writing them.
    #[arg(long, default_value_t = 24.0)]
    pub older_than_hours: f64,
    /// Only show what would be removed.
    #[arg(long)]
    pub dry_run: bool,
}

/// Removes the files and returns their keys.
///
/// # Errors
/// If there is no dataset, or the store fails.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let dataset = args.run.open()?.dataset();
    let older_than = Duration::try_from_secs_f64(args.older_than_hours * 3600.0).map_err(|_| {
        let message = format!("--older-than-hours: {} is not a valid age", args.older_than_hours);
        Error::Arguments(message)
    })?;
    let garbage =
        GarbageCollector { keep: args.keep, older_than, dry_run: args.dry_run }.collect(&dataset)?;
    for key in &garbage.keys {
        reporter.report(format!("  {key}"));
    }
    let action = if args.dry_run { "would remove" } else { "removed" };
    let megabytes = garbage.bytes as f64 / 1e6;
    reporter.report(format!("{dataset}: {action} {} objects, {megabytes:.1} MB", garbage.objects));
    Ok(json!({ "verb": "gc", "dataset": dataset, "dry_run": args.dry_run, "removed": garbage }))
}
