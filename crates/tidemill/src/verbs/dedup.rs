//! `tidemill dedup`: finds the duplicates among the rows of a run's dataset and writes them as a
//! mask next to its data.

use serde_json::{Value, json};
use tidemill_store::Dataset;
use tidemill_store::dedup::{Reason, read_rows};

use crate::engine::dataset_sink::find_duplicates;
use crate::error::Result;
use crate::progress::Reporter;
use crate::verbs::shared_arguments::RunArgs;

/// Arguments of `tidemill dedup`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill dedup run.toml\n  \
    tidemill dedup run.toml --set dedup.near.phash_distance=3")]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Writes the mask and returns the number of rows that it leaves out.
///
/// # Errors
/// If `[dedup]` is empty, the dataset has no hashes, or the mask cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    let config = run.file.dedup;
    if !config.is_set() {
        let message = "nothing counts as a duplicate; set exact = true, or near = { phash_distance = 3 }";
        return Err(run.refuse("dedup", message));
    }
    let dataset = Dataset::open(&run.dataset())?;
    let rows = read_rows(&dataset)?;
    let row_count = rows.len();
    let mask = find_duplicates(&dataset, &config, rows)?;
    let count = |reason| mask.duplicates.iter().filter(|duplicate| duplicate.reason == reason).count();
    let (exact, near, similar) = (count(Reason::Exact), count(Reason::Near), count(Reason::Similar));
    let kept = row_count - exact - near - similar;
    reporter.report(format!(
        "{row_count} rows: {exact} exact, {near} near and {similar} similar duplicates, {kept} rows remain"
    ));
    reporter.report(format!("the mask is in {}", dataset.location().uri_of(&mask.path)));
    Ok(json!({
        "verb": "dedup", "dataset": run.dataset(), "snapshot": dataset.snapshot_number(), "mask": mask.path,
        "rows": row_count, "exact": exact, "near": near, "similar": similar,
    }))
}
