//! The arguments of `tidemill train`, and the choice of where to train: in this process, in
//! supervised workers on this machine, or in workers of Ray Train.

use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::Value;

use super::rank_arguments::RankArgs;
use super::ray_cluster::train_on_ray;
use super::train_hooks::TrainHooks;
use super::worker::run_worker;
use crate::error::Result;
use crate::online::EncodingMode;
use crate::progress::Reporter;
use crate::python::find_interpreter;
use crate::run_file::Run;
use crate::supervisor::{WorkerCommand, supervise};
use crate::verbs::shared_arguments::RunArgs;

/// Arguments of `tidemill train`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill train run.toml\n  tidemill train run.toml --set train.micro_batch=16\n  \
        tidemill train run.toml --workers 8\n  torchrun --nproc-per-node 8 -m tidemill train run.toml"
)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// Where the rows come from.
    #[arg(long, value_enum, default_value_t)]
    pub mode: EncodingMode,
    /// Train with this many processes on this machine, and restart them when one is lost: a number,
    /// or the fewest and the most, as in 6..8.
    #[arg(long, value_name = "N", value_parser = parse_workers)]
    pub workers: Option<RangeInclusive<usize>>,
    /// Rank and world of this process, set by a launcher.
    #[command(flatten)]
    pub rank: RankArgs,
}

/// Parses a number of workers, or a range of numbers.
///
/// # Errors
/// If the text is neither, or allows no worker.
pub fn parse_workers(text: &str) -> std::result::Result<RangeInclusive<usize>, String> {
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("`{text}` is not a number"));
    let (fewest, most) = match text.split_once("..") {
        Some((fewest, most)) => (number(fewest)?, number(most.trim_start_matches('='))?),
        None => (number(text)?, number(text)?),
    };
    if fewest == 0 || most < fewest {
        return Err("give at least 1 worker, and the smaller number first".into());
    }
    Ok(fewest..=most)
}

/// Trains, and returns how training ended. Only the first of several ranks returns a result; the
/// others return null.
///
/// # Errors
/// If the input is refused, or training fails, for example because the loss is not finite.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.rank.agree(args.run.open())?;
    let is_launcher = args.workers.is_none() && !args.rank.has_launcher();
    match &run.file.engine.train {
        Some(workers) if is_launcher => train_on_ray(&run, workers, args.mode, reporter),
        _ => train_on_this_machine(&run, args, reporter, TrainHooks::default())
            .map(|report| if args.rank.rank == 0 { report } else { Value::Null }),
    }
}

/// Like [`run`], but with hooks, in this process or its workers even if the run file has
/// `[engine.train]`. Every rank returns a result.
///
/// # Errors
/// The errors of [`run`].
pub fn run_with_hooks(args: &Args, reporter: &Reporter, hooks: TrainHooks<'_>) -> Result<Value> {
    train_on_this_machine(&args.rank.agree(args.run.open())?, args, reporter, hooks)
}

fn train_on_this_machine(
    run: &Run,
    args: &Args,
    reporter: &Reporter,
    hooks: TrainHooks<'_>,
) -> Result<Value> {
    match &args.workers {
        Some(workers) => supervise_workers(run, args, workers, reporter),
        None => run_worker(run, args.mode, &args.rank, reporter, hooks),
    }
}

/// Supervises processes that each run this verb without `--workers`.
fn supervise_workers(
    run: &Run,
    args: &Args,
    workers: &RangeInclusive<usize>,
    reporter: &Reporter,
) -> Result<Value> {
    run.validate_train()?;
    let mut arguments = vec!["train".into(), args.run.run_file.display().to_string()];
    arguments.extend(["--mode".into(), args.mode.to_string()]);
    arguments.extend(["--places".into(), workers.end().to_string()]);
    arguments.extend(args.run.overrides.iter().flat_map(|setting| ["--set".into(), setting.clone()]));
    let flags = [("--json", reporter.json), ("--quiet", reporter.quiet)];
    arguments.extend(flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| (*flag).to_owned()));
    let worker = WorkerCommand { python: find_interpreter(), arguments, is_silent: reporter.json };
    supervise(&worker, workers, &run.file.supervisor, Path::new(&run.output()), reporter)
}
