//! `tidemill train`: trains the U-Net on the run's latent dataset, or on its pairs as they come, from the last checkpoint if there
//! is one.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tch::{Device, Kind};
use tidemill_models::{
    AutoencoderKl, ModelFolder, ParamInit, TrainableDenoiser, UNet2DConditionModel, UNetConfig,
};
use tidemill_store::RowCounts;
use tidemill_train::{
    Activity, Observer, PreviewSampler, StepMetrics, TrainOutcome, TrainSpec, World, train,
};

use super::ray_cluster;
use super::training_data::{Given, given};
use crate::engine::device::{device_of, devices, shown};
use crate::engine::machine_resources::cores;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::online::{Elsewhere, Ledger, Mode};
use crate::progress::{Progress, Reporter, print_to_stderr};
use crate::python::interpreter;
use crate::run_file::Run;
use crate::sampling::TextEmbedder;
use crate::supervisor::{Heartbeat, TrainingEnd, WorkerActivity, WorkerCommand, WorkerMessage, supervise};
use crate::verbs::shared_arguments::RunArgs;
use crate::verbs::train::rank_arguments::RankArgs;

/// Arguments of `tidemill train`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill train run.toml\n  tidemill train run.toml --set train.micro_batch=16\n  \
        tidemill train run.toml --workers 8\n  torchrun --nproc-per-node 8 -m tidemill train run.toml"
)]
pub struct Args {
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Where the rows come from.
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Train with so many processes on this machine, and start them again when one is lost: a number, or the fewest and
    /// the most, as in 6..8.
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<RangeInclusive<usize>>,
    /// Which of several processes this is.
    #[command(flatten)]
    pub place: RankArgs,
}

/// A number of workers, or a range.
///
/// # Errors
/// Says what it should be.
pub fn workers(text: &str) -> std::result::Result<RangeInclusive<usize>, String> {
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("`{text}` is not a number"));
    let (fewest, most) = match text.split_once("..") {
        Some((fewest, most)) => (number(fewest)?, number(most.trim_start_matches('='))?),
        None => (number(text)?, number(text)?),
    };
    if fewest == 0 || most < fewest {
        return Err("give at least 1 worker, and the fewest first".into());
    }
    Ok(fewest..=most)
}

/// Trains and says how it went.
///
/// # Errors
/// Refused input; a loss that is no number.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.place.together(args.run.open())?;
    let alone = args.workers.is_none() && !args.place.is_given();
    match &run.file.engine.train {
        Some(workers) if alone => ray_cluster::train(&run, workers, args.mode, reporter),
        // The first rank speaks for all.
        _ => run_here(&run, args, reporter, Own::default())
            .map(|report| if args.place.rank == 0 { report } else { Value::Null }),
    }
}

/// What a program that has a run trained brings of its own.
pub struct Own<'a> {
    /// Hears of each line of metrics, on every rank; says whether to go on.
    pub listener: Box<dyn FnMut(&StepMetrics) -> bool + Send + 'a>,
    /// Asked before each step whether to stop, as a signal would.
    pub stop: Box<dyn Fn() -> bool + Send + 'a>,
    /// Encodes rows that come without a dataset, in place of this process.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
    /// What is trained, in place of the model folder's U-Net.
    pub denoiser: Option<MakeDenoiser<'a>>,
}

/// Makes a denoiser on a device, with its first weights.
pub type MakeDenoiser<'a> = Box<dyn FnOnce(Device) -> Result<Box<dyn TrainableDenoiser>> + Send + 'a>;

impl Default for Own<'_> {
    fn default() -> Self {
        Self { listener: Box::new(|_| true), stop: Box::new(|| false), elsewhere: None, denoiser: None }
    }
}

/// As [`run`] of one process, wherever the run file would train.
///
/// # Errors
/// As [`run`].
pub fn run_own(args: &Args, reporter: &Reporter, own: Own<'_>) -> Result<Value> {
    run_here(&args.place.together(args.run.open())?, args, reporter, own)
}

fn run_here(run: &Run, args: &Args, reporter: &Reporter, own: Own<'_>) -> Result<Value> {
    match &args.workers {
        Some(workers) => supervise_run(run, args, workers, reporter),
        None => worker(run, args.mode, &args.place, reporter, own),
    }
}

/// Looks after processes that each do what [`run`] does without `--workers`.
fn supervise_run(
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
    arguments.extend(flags.iter().filter(|(_, given)| *given).map(|(flag, _)| (*flag).to_owned()));
    let worker = WorkerCommand { python: interpreter(), arguments, is_silent: reporter.json };
    supervise(&worker, workers, &run.file.supervisor, reporter)
}

/// [`train_run`], with a line to the supervisor.
fn worker(run: &Run, mode: Mode, place: &RankArgs, reporter: &Reporter, own: Own<'_>) -> Result<Value> {
    let heartbeat = place.heartbeat()?;
    let trained = train_run(run, mode, place, &heartbeat, reporter, own);
    let (how, result) = match &trained {
        Ok(Trained { finished: true, report }) => (TrainingEnd::Done, report.clone()),
        Ok(Trained { report, .. }) => (TrainingEnd::Stopped, report.clone()),
        Err(error) if error.has_lost_peers() => (TrainingEnd::LostPeers(error.to_string()), Value::Null),
        Err(Error::Train(tidemill_train::Error::Straggler { rank, message })) => {
            (TrainingEnd::Straggler { rank: *rank, message: message.clone() }, Value::Null)
        }
        Err(error @ Error::Train(tidemill_train::Error::Overtaken { .. })) => {
            (TrainingEnd::Overtaken(error.to_string()), Value::Null)
        }
        Err(error) if error.exit_code() == 2 => (TrainingEnd::Refused(error.to_string()), Value::Null),
        Err(error) => (TrainingEnd::Failed(error.to_string()), Value::Null),
    };
    heartbeat.send(&WorkerMessage::Ended { end: how, result });
    // The supervisor says whose fault it is, once; without one, the rank whose it is.
    let told =
        |error| if place.supervisor.is_some() { Error::ReportedElsewhere(Box::new(error)) } else { error };
    trained.map(|trained| trained.report).map_err(told)
}

/// How training in this process ended.
#[derive(Debug)]
pub struct Trained {
    /// Whether all steps are done; else it was asked to stop.
    pub finished: bool,
    /// What the verb gives, on all ranks.
    pub report: Value,
}

/// Trains in this process, for a run file that is open.
///
/// # Errors
/// As [`run`].
pub fn train_run(
    run: &Run,
    mode: Mode,
    place: &RankArgs,
    heartbeat: &Heartbeat,
    reporter: &Reporter,
    own: Own<'_>,
) -> Result<Trained> {
    let world = place.world()?;
    let reporter = &Reporter { quiet: reporter.quiet || !world.is_first(), ..*reporter };
    let job = job(run, mode, place, &world, own.elsewhere, own.denoiser, reporter);
    let (job, rows) = world.together(job)?;
    let mut watcher = Watcher {
        progress: reporter.start_progress("train", "steps", run.file.train.total_steps()),
        reporter,
        world: &world,
        heartbeat,
        signal: StopSignal::watch(),
        listener: own.listener,
        stop: own.stop,
        seen: None,
    };
    let outcome = train(job, &mut watcher);
    watcher.progress.finish();
    let outcome = outcome?;
    let report = report(run, &outcome, rows.as_deref());
    if world.is_first() {
        report_training_end(&run.output(), &report, reporter);
    }
    Ok(Trained { finished: outcome.finished, report })
}

/// What this process trains, and what becomes of pairs that come without a dataset.
fn job(
    run: &Run,
    mode: Mode,
    place: &RankArgs,
    world: &World,
    elsewhere: Option<Arc<dyn Elsewhere>>,
    denoiser: Option<MakeDenoiser<'_>>,
    reporter: &Reporter,
) -> Result<(TrainSpec, Option<Arc<Ledger>>)> {
    run.validate_train()?;
    if run.file.train.health.exclude && place.process_group.is_some() && place.supervisor.is_none() {
        return Err(run.refuse(
            "train.health.exclude",
            "only `--workers` can go on without a rank; set it to false here",
        ));
    }
    tidemill_io::share_machine(place.local_world_size);
    let devices = devices(run)?;
    let device = device_of(run, &devices, place.local_rank, place.local_world_size)?;
    // The first rank says it for all of its machine's.
    let of_ranks = if place.local_world_size > 1 { devices.get(..place.local_world_size) } else { None };
    reporter.report(format!("training on {}", shown(run, of_ranks.unwrap_or(&[device]))));
    let models = run.models()?;
    let Given { data, text_encoder, validation_set, rows } =
        given(run, mode, place, &devices, elsewhere, reporter)?;
    // Threads that the run file gives are for the machine.
    let threads = match run.file.engine.encode.threads {
        0 => cores(0),
        given => given.div_ceil(place.local_world_size),
    };
    tch::set_num_threads(threads as i32);
    let denoiser = match denoiser {
        Some(make) => make(device)?,
        None => Box::new(first_unet(run, &models, device)?),
    };
    let job = TrainSpec {
        train: run.file.train.clone(),
        checkpoint: run.file.checkpoint.clone(),
        world: world.clone(),
        seed: run.file.seed,
        output: run.output().into(),
        data,
        denoiser,
        text_encoder,
        validation_set,
        scheduler: models.scheduler()?,
        preview: preview(run, &models, device)?,
    };
    Ok((job, rows))
}

/// The U-Net that training starts with: the folder's weights, or random ones from the run's seed.
///
/// # Errors
/// If the configuration is not supported or the weights do not fit it.
pub fn first_unet(run: &Run, models: &ModelFolder, device: Device) -> Result<UNet2DConditionModel> {
    if models.has_unet_weights()? {
        return Ok(UNet2DConditionModel::load(&models.unet(), device)?);
    }
    tch::manual_seed(run.file.seed as i64);
    let config = UNetConfig::read(&models.unet().join("config.json"))?;
    Ok(UNet2DConditionModel::new(config, device, ParamInit::Random)?)
}

fn preview(run: &Run, models: &ModelFolder, device: Device) -> Result<Option<PreviewSampler>> {
    let Some(config) = run.file.train.preview.clone().filter(|c| c.every > 0 && !c.prompts.is_empty()) else {
        return Ok(None);
    };
    let embedder = TextEmbedder::load(models, device)?;
    let vae = AutoencoderKl::load(&models.vae(), device, Kind::Float)?;
    Ok(Some(PreviewSampler {
        seed: run.file.seed,
        text: embedder.embed(&config.prompts)?,
        empty: embedder.embed(&[String::new()])?,
        resolution: run.file.sample.resolution,
        batch_size: run.file.sample.batch_size,
        vae,
        config,
        dir: None,
    }))
}

/// Shows the trainer's steps and hands it signals.
struct Watcher<'a> {
    progress: Progress,
    reporter: &'a Reporter,
    world: &'a World,
    heartbeat: &'a Heartbeat,
    signal: StopSignal,
    listener: Box<dyn FnMut(&StepMetrics) -> bool + Send + 'a>,
    stop: Box<dyn Fn() -> bool + Send + 'a>,
    /// Steps shown so far; none before the first one is begun.
    seen: Option<u64>,
}

impl Observer for Watcher<'_> {
    fn on_step(&mut self, metrics: &StepMetrics, _total: u64) {
        self.progress.note(format!(
            "loss {:.4}, {:.1} img/s, waiting for data {:.0}%",
            metrics.loss,
            metrics.images_per_second,
            100.0 * metrics.data_wait
        ));
        let seen = self.seen.unwrap_or(0);
        self.progress.add(metrics.step.saturating_sub(seen));
        self.seen = Some(seen.max(metrics.step));
        if !(self.listener)(metrics) {
            self.signal.raise();
        }
    }

    fn log(&mut self, message: &str) {
        match self.world.rank() {
            0 => self.reporter.report_above(&self.progress, message),
            rank => print_to_stderr(format_args!("rank {rank}: {message}")),
        }
    }

    fn should_stop(&self) -> bool {
        self.signal.raised() || (self.stop)()
    }

    fn on_activity(&mut self, step: u64, activity: Activity) {
        if self.seen.is_none() {
            // What an earlier run has done is no progress of this one's.
            self.progress.start_at(step);
            self.seen = Some(step);
        }
        let doing = match activity {
            Activity::WaitForData => WorkerActivity::Data,
            Activity::Step => WorkerActivity::Step,
            Activity::FinalCheckpoint => WorkerActivity::End,
        };
        self.heartbeat.set(step, doing);
    }

    fn on_checkpoint(&mut self, step: u64) {
        self.heartbeat.send(&WorkerMessage::Committed(step));
    }
}

/// `ledger`: what became of pairs on the way, and how long that took, if they came without a dataset.
fn report(run: &Run, outcome: &TrainOutcome, ledger: Option<&Ledger>) -> Value {
    let rows = |counts: RowCounts| {
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
        "rows": ledger.map(|ledger| rows(ledger.counts())),
        "stages": ledger.map(Ledger::work),
    })
}

/// Says how training ended, from its report.
pub fn report_training_end(output: &str, report: &Value, reporter: &Reporter) {
    let ended = match report["finished"] == true {
        true => "trained",
        false => "stopped by a signal; the same command goes on after",
    };
    reporter.report(format!(
        "{ended} {} steps, {:.1} img/s, mean loss of the last steps {}; metrics in {}",
        report["steps"],
        report["images_per_second"].as_f64().unwrap_or(0.0),
        report["loss"].as_f64().map_or_else(|| "unknown".into(), |loss| format!("{loss:.4}")),
        Path::new(output).join("metrics.jsonl").display()
    ));
}
