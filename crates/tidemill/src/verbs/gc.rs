//! `tidemill gc`: removes from a dataset's folder what nobody can read any more.

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
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Newest snapshots to keep; a training run goes on with the one that it began with.
    #[arg(long, default_value_t = 2)]
    pub keep: usize,
    /// Leave alone what is younger than this, and units under settings with a unit that is: somebody may be at work.
    #[arg(long, default_value_t = 24.0)]
    pub older_than_hours: f64,
    /// Only say what would go.
    #[arg(long)]
    pub dry_run: bool,
}

/// Removes, and says what.
///
/// # Errors
/// If there is no dataset, or the store fails.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let dataset = args.run.open()?.dataset();
    let older_than = Duration::try_from_secs_f64(args.older_than_hours * 3600.0)
        .map_err(|_| Error::Arguments(format!("--older-than-hours: {} is no age", args.older_than_hours)))?;
    let garbage =
        GarbageCollector { keep: args.keep, older_than, dry_run: args.dry_run }.collect(&dataset)?;
    for key in &garbage.keys {
        reporter.report(format!("  {key}"));
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    reporter.report(format!(
        "{dataset}: {verb} {} objects, {:.1} MB",
        garbage.objects,
        garbage.bytes as f64 / 1e6
    ));
    Ok(json!({ "verb": "gc", "dataset": dataset, "dry_run": args.dry_run, "removed": garbage }))
}
