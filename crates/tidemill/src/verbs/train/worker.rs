//! Training in this process, alone or as one rank of several.

use std::sync::Arc;

use serde_json::Value;
use tch::Device;
use tidemill_train::{Sharding, TrainSpec, World, train};

use super::initial_denoiser::load_initial_denoiser;
use super::preview_sampler::load_preview_sampler;
use super::rank_arguments::RankArgs;
use super::step_observer::StepObserver;
use super::train_hooks::{MakeDenoiser, TrainHooks};
use super::training_data::{OpenedData, open_training_data};
use super::training_report::{print_training_end, training_report};
use crate::engine::device::{describe_devices, select_devices, select_rank_device};
use crate::engine::machine_resources::resolve_threads;
use crate::engine::stop_signal::StopSignal;
use crate::error::exit_codes::EXIT_REFUSED;
use crate::error::{Error, Result};
use crate::online::{EncodingMode, RemoteEncoders, RowAccounting};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::supervisor::{Heartbeat, TrainingEnd, WorkerMessage};
use crate::tracking::Tracker;

/// Training in this process that ended without an error.
struct TrainedRank {
    /// Whether all steps are done. Otherwise a signal stopped training.
    is_finished: bool,
    /// The result of the verb, on all ranks.
    report: Value,
}

/// Trains in this process and reports to the supervisor, if there is one, how training ended.
///
/// # Errors
/// If the input is refused, or training fails.
pub fn run_worker(
    run: &Run,
    mode: EncodingMode,
    rank: &RankArgs,
    reporter: &Reporter,
    hooks: TrainHooks<'_>,
) -> Result<Value> {
    let heartbeat = rank.connect_to_supervisor()?;
    let trained = train_rank(run, mode, rank, &heartbeat, reporter, hooks);
    let (end, result) = describe_end(&trained);
    heartbeat.send(&WorkerMessage::Ended { end, result });
    // The supervisor reports which rank is at fault, once. Without a supervisor, the rank at fault
    // reports it.
    let has_supervisor = rank.supervisor.is_some();
    trained.map(|trained| trained.report).map_err(|error| match has_supervisor {
        true => Error::ReportedByOtherProcess(Box::new(error)),
        false => error,
    })
}

/// How training ended, as the supervisor distinguishes it, and the result of the verb.
fn describe_end(trained: &Result<TrainedRank>) -> (TrainingEnd, Value) {
    use tidemill_train::Error as Train;
    let error = match trained {
        Ok(TrainedRank { is_finished: true, report }) => return (TrainingEnd::Done, report.clone()),
        Ok(TrainedRank { report, .. }) => return (TrainingEnd::Stopped, report.clone()),
        Err(error) => error,
    };
    let end = match error {
        error if error.has_lost_peers() => TrainingEnd::LostPeers(error.to_string()),
        Error::Train(Train::Straggler { rank, message }) => {
            TrainingEnd::Straggler { rank: *rank, message: message.clone() }
        }
        Error::Train(Train::Overtaken { .. }) => TrainingEnd::Overtaken(error.to_string()),
        error if error.exit_code() == EXIT_REFUSED => TrainingEnd::Refused(error.to_string()),
        error => TrainingEnd::Failed(error.to_string()),
    };
    (end, Value::Null)
}

fn train_rank(
    run: &Run,
    mode: EncodingMode,
    rank: &RankArgs,
    heartbeat: &Heartbeat,
    reporter: &Reporter,
    hooks: TrainHooks<'_>,
) -> Result<TrainedRank> {
    let world = rank.world()?;
    let reporter = &Reporter { quiet: reporter.quiet || !world.is_first(), ..*reporter };
    let TrainHooks { on_metrics, should_stop, remote_encoders, denoiser } = hooks;
    let spec = build_train_spec(run, mode, rank, &world, remote_encoders, denoiser, reporter);
    let (spec, rows) = world.propagate_error(spec)?;
    let tracker = if world.is_first() { Tracker::start(run) } else { Ok(None) };
    let mut tracker = world.propagate_error(tracker)?;
    tracker.iter_mut().flat_map(Tracker::take_messages).for_each(|message| reporter.report(message));
    let mut observer = StepObserver {
        progress: reporter.start_progress("train", "steps", run.file.train.total_steps()),
        reporter,
        world: &world,
        heartbeat,
        signal: StopSignal::watch(),
        tracker,
        on_metrics,
        should_stop,
        shown_step: None,
    };
    if world.is_first()
        && let Err(error) = run.save()
    {
        reporter.report(format!("reports will lack the run file: {error}"));
    }
    let outcome = train(spec, &mut observer);
    observer.progress.finish();
    if let Some(tracker) = observer.tracker.take() {
        tracker.finish(outcome.is_err()).iter().for_each(|message| reporter.report(message));
    }
    let outcome = outcome?;
    let report = training_report(run, &outcome, rows.as_deref());
    if world.is_first() {
        print_training_end(&run.output(), &report, reporter);
    }
    Ok(TrainedRank { is_finished: outcome.finished, report })
}

/// Loads everything that this process trains with. Also returns what becomes of the pairs of online
/// training.
fn build_train_spec(
    run: &Run,
    mode: EncodingMode,
    rank: &RankArgs,
    world: &World,
    remote_encoders: Option<Arc<dyn RemoteEncoders>>,
    denoiser: Option<MakeDenoiser<'_>>,
    reporter: &Reporter,
) -> Result<(TrainSpec, Option<Arc<RowAccounting>>)> {
    run.validate_train()?;
    if run.file.train.health.exclude && rank.process_group.is_some() && rank.supervisor.is_none() {
        return Err(run.refuse(
            "train.health.exclude",
            "only `tidemill train --workers` can continue without a rank; set it to false here",
        ));
    }
    tidemill_io::set_processes_on_machine(rank.local_world_size);
    let devices = select_devices(run)?;
    let device = select_rank_device(run, &devices, rank.local_rank, rank.local_world_size)?;
    // The first rank reports the devices of all ranks of its machine.
    let rank_devices = if rank.local_world_size > 1 { devices.get(..rank.local_world_size) } else { None };
    reporter.report(format!("training on {}", describe_devices(run, rank_devices.unwrap_or(&[device]))));
    let models = run.models()?;
    let OpenedData { data, text_encoders, validation_set, rows } =
        open_training_data(run, mode, rank, &devices, remote_encoders, reporter)?;
    // The run file's number of threads is for the whole machine.
    let threads = match run.file.engine.encode.threads {
        0 => resolve_threads(0),
        of_machine => of_machine.div_ceil(rank.local_world_size),
    };
    tch::set_num_threads(threads as i32);
    let denoiser = match denoiser {
        Some(make) => make(device)?,
        // Its parameters go to the device one by one, where each rank keeps its part only.
        None if run.file.train.sharding == Sharding::FullShard && world.size() > 1 => {
            let denoiser = load_initial_denoiser(run, &models, Device::Cpu)?;
            denoiser.params().set_device(device)?;
            denoiser
        }
        None => load_initial_denoiser(run, &models, device)?,
    };
    // The trainer derives it again from its parts; here the network is known.
    run.training_schedule(&models)?;
    let spec = TrainSpec {
        train: run.file.train.clone(),
        checkpoint: run.file.checkpoint.clone(),
        world: world.clone(),
        seed: run.file.seed,
        output: run.output().into(),
        data,
        denoiser,
        text_encoders,
        text_join: run.text_join(&models)?,
        validation_set,
        scheduler: models.scheduler()?,
        preview: load_preview_sampler(run, &models, device)?,
    };
    Ok((spec, rows))
}
