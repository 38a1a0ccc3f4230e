//! The arguments of `tidemill run`, and its verbs in their order. Writes `summary.json` into the
//! run's output.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use tidemill_models::Variant;

use super::preflight_checks::{check_models, check_validation};
use crate::engine::device::select_devices;
use crate::error::{Error, Result};
use crate::evaluation::{Selection, check_evaluation};
use crate::online::EncodingMode;
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights::WeightSelection;
use crate::verbs::shared_arguments::RunArgs;
use crate::verbs::train::rank_arguments::RankArgs;
use crate::verbs::{eval, export, preprocess, report, sample, train};

/// Arguments of `tidemill run`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill run run.toml --set seed=7\n  tidemill run run.toml --workers 8"
)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// How the encoders feed the trainer.
    #[arg(long, value_enum, default_value_t)]
    pub mode: EncodingMode,
    /// Train with this many processes, as `tidemill train --workers`.
    #[arg(long, value_name = "N", value_parser = train::parse_workers)]
    pub workers: Option<RangeInclusive<usize>>,
}

/// Runs all verbs and writes the summary. Without a dataset (online), training includes
/// preprocessing.
///
/// # Errors
/// The first verb's error.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let start = Instant::now();
    let run = args.run.open()?;
    run.validate_source()?;
    run.validate_train()?;
    check_models(&run)?;
    check_validation(&run, args.mode)?;
    check_evaluation(&run, args.mode == EncodingMode::Offline)?;
    let preprocessed = match args.mode {
        EncodingMode::Offline => preprocess::preprocess(&run, reporter)?,
        EncodingMode::Online | EncodingMode::Colocated => Value::Null,
    };
    let trained = train_to_end(args, &run, reporter)?;
    let config = &run.file.sample;
    let draw = |untrained, folder| draw_images(args, &run, untrained, folder, reporter);
    let sampled = if config.has_prompts() { draw(false, "samples")? } else { Value::Null };
    let untrained = if config.scenes == 0 { Value::Null } else { draw(true, "untrained")? };
    let evaluated = match run.file.eval.has_prompts() {
        true => eval::evaluate_run(&run, Selection::All, reporter)?,
        false => Value::Null,
    };
    let selection = WeightSelection { step: config.step, averaged: config.ema };
    let exported = export::export(&run, None, selection, Variant::F32, reporter)?;
    let summary = json!({
        "score": sampled["score"],
        "untrained_score": untrained["score"],
        "seconds": start.elapsed().as_secs_f64(),
        "rows": if args.mode == EncodingMode::Offline { &preprocessed["rows"] } else { &trained["rows"] },
        "grid": sampled["grid"],
        "export": exported["path"],
        "evaluations": evaluations_by_step(&evaluated),
        "evaluation_plot": evaluated["folder"].as_str().map(|folder| format!("{folder}/metrics.png")),
    });
    write_summary(&run, &summary, reporter)?;
    // All work is done, so that a report that fails is not the run's failure.
    match report::write_report(Path::new(&run.output())) {
        Ok(path) => reporter.report(format!("the report is in {}", path.display())),
        Err(error) => reporter.report(format!("there is no report: {error}")),
    }
    Ok(json!({
        "verb": "run", "summary": summary, "preprocess": preprocessed, "train": trained, "sample": sampled,
        "eval": evaluated, "export": exported,
    }))
}

/// Trains until all steps are done.
fn train_to_end(args: &Args, run: &Run, reporter: &Reporter) -> Result<Value> {
    let (rank, workers) = (RankArgs::default(), args.workers.clone());
    if workers.is_some() && select_devices(run)?.iter().any(|device| device.is_cuda()) {
        // Returns the GPU memory of this process's encoders, because the workers need it.
        tidemill_torch::empty_cache().map_err(tidemill_models::Error::from)?;
    }
    let train = train::Args { run: args.run.clone(), mode: args.mode, workers, rank };
    let trained = train::run(&train, reporter)?;
    if trained["finished"] != true {
        let done = trained["steps"].as_u64().unwrap_or(0);
        return Err(Error::Interrupted { done, total: run.file.train.total_steps(), unit: "steps" });
    }
    Ok(trained)
}

/// Draws the images of `[sample]` into a folder of the run's output.
fn draw_images(args: &Args, run: &Run, untrained: bool, folder: &str, reporter: &Reporter) -> Result<Value> {
    let to = Some(Path::new(&run.output()).join(folder));
    let args = sample::Args { run: args.run.clone(), prompts: Vec::new(), untrained, to, save_noise: true };
    sample::sample(run, &args, reporter)
}

/// The numbers of each evaluated step.
fn evaluations_by_step(evaluated: &Value) -> Vec<Value> {
    let records = evaluated["records"].as_array().map_or(&[][..], Vec::as_slice);
    records.iter().map(|record| json!({ "step": record["step"], "metrics": record["metrics"] })).collect()
}

fn write_summary(run: &Run, summary: &Value, reporter: &Reporter) -> Result<()> {
    let path = Path::new(&run.output()).join("summary.json");
    let text = serde_json::to_vec_pretty(summary).map_err(std::io::Error::from);
    text.and_then(|text| std::fs::write(&path, text))
        .map_err(|source| Error::Write { path: path.display().to_string(), source })?;
    reporter.report(format!("the summary is in {}", path.display()));
    Ok(())
}
