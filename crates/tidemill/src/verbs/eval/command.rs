//! Evaluates the checkpoints of a run.

use serde_json::{Value, json};

use super::arguments::Args;
use super::folder::eval_folder;
use super::ray_cluster::eval_on_ray;
use crate::engine::machine_resources::peak_memory_mib;
use crate::error::{Error, Result};
use crate::evaluation::{Selection, evaluate};
use crate::progress::Reporter;
use crate::run_file::Run;

/// Evaluates and returns the records.
///
/// # Errors
/// If the arguments contradict each other, or as [`evaluate_run`].
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    if args.path.is_dir() {
        if args.step.is_some() || args.all || args.watch || !args.overrides.is_empty() {
            let message =
                "--step, --all, --watch and --set are for a run file, and this is a folder of images";
            return Err(Error::Arguments(message.into()));
        }
        return eval_folder(&args.path, &args.folder, reporter);
    }
    if args.folder.is_used() {
        let message = "--prompts, --reference, --model, --metric, --table, --save-statistics and --device are \
                       for a folder of images; a run file has [eval] and [engine]";
        return Err(Error::Arguments(message.into()));
    }
    let selection = match args.step {
        Some(step) => Selection::Step(step),
        None if args.watch => Selection::Watch,
        None if args.all => Selection::All,
        None => Selection::Newest,
    };
    let run = Run::open(&args.path, &args.overrides)?;
    if args.worker { eval_here(&run, selection, reporter) } else { evaluate_run(&run, selection, reporter) }
}

/// Evaluates checkpoints of an opened run file, on Ray if it has `[engine.eval]`.
///
/// # Errors
/// If there is no checkpoint, the run file does not fit it, or the work fails.
pub fn evaluate_run(run: &Run, selection: Selection, reporter: &Reporter) -> Result<Value> {
    match &run.file.engine.eval {
        Some(pool) => eval_on_ray(run, pool, selection, reporter),
        None => eval_here(run, selection, reporter),
    }
}

/// Evaluates checkpoints with this process as an evaluator.
fn eval_here(run: &Run, selection: Selection, reporter: &Reporter) -> Result<Value> {
    let evaluated = evaluate(run, selection, reporter)?;
    let last = evaluated.records.last();
    Ok(json!({
        "verb": "eval",
        "step": last.map(|record| record.step),
        "images": last.map(|record| record.images),
        "metrics": last.map(|record| &record.metrics),
        "records": evaluated.records,
        "skipped": evaluated.skipped,
        "folder": evaluated.folder,
        "peak_memory_mib": peak_memory_mib(),
    }))
}
