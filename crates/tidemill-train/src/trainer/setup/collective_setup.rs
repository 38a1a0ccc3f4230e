//! Set-up that all ranks do together, up to the components of the trainer.

use std::sync::Arc;

use bytesize::ByteSize;
use tidemill_models::SchedulerConfig;
use tidemill_plan::Traffic;
use tidemill_torch::{guard, has_native_bf16};

use super::local_setup::LocalSetup;
use super::resume::{RunRecord, load_progress, restore_snapshots};
use crate::Error;
use crate::checkpoint::{Checkpoints, Progress, Writer};
use crate::evaluation::preview::create_preview_folder;
use crate::metrics::events_log::EventsLog;
use crate::metrics::metrics_log::MetricsLog;
use crate::metrics::profiler::Profiler;
use crate::metrics::prometheus::PrometheusEndpoint;
use crate::observer::Observer;
use crate::optimizer::{Optimizer, ShardingPlan};
use crate::parallel::health_check;
use crate::train_spec::TrainSpec;
use crate::trainer::checkpointer::Checkpointer;
use crate::trainer::metrics_reporter::{MetricsOutputs, MetricsReporter};
use crate::trainer::step::step_runner::StepRunner;

/// What the trainer is made of.
pub(crate) struct Components {
    pub spec: TrainSpec,
    pub schedule: SchedulerConfig,
    pub progress: Progress,
    pub step_runner: StepRunner,
    pub checkpointer: Checkpointer,
    pub metrics: MetricsReporter,
    pub profiler: Option<Profiler>,
}

/// Sets a run up, and resumes it from its last checkpoint if it has one. All ranks call this
/// together.
///
/// # Errors
/// If the configuration, the dataset, the model and the checkpoint do not fit each other, the ranks
/// disagree, or the output cannot be written.
pub(crate) fn set_up(mut spec: TrainSpec, observer: &mut dyn Observer) -> Result<Components, Error> {
    let world = spec.world.clone();
    let checkpoints = Checkpoints::open(&spec.checkpoint, &spec.output).map(Arc::new);
    let checkpoints = world.propagate_error(checkpoints)?;
    let checkpoint = checkpoints.load_latest_progress(&world)?;
    let snapshot_messages = checkpoint.as_ref().map(|checkpoint| restore_snapshots(&mut spec, checkpoint));
    let has_bf16 = do_all_ranks_have_bf16(&spec)?;
    let LocalSetup {
        dataset,
        schedule,
        row_costs,
        identity,
        settings,
        objective,
        sharding_plan,
        cuda_graph_target,
        messages: setup_messages,
    } = world.propagate_error(LocalSetup::new(&mut spec, has_bf16))?;
    world.check_equal_on_all_ranks(&serde_json::json!({
        "version": version(), "train": settings, "checkpoint": spec.checkpoint, "run": identity,
    }))?;
    // Checked before a checkpoint is loaded, while a denoiser of the user's own still has its
    // initial weights.
    checkpoint.map_or(Ok(()), |checkpoint| checkpoints.check_identity(&checkpoint, &identity))?;
    let slow_ranks = health_check::check_ranks(&spec.train.health, &world, objective.device, observer)?;
    if world.is_first() {
        setup_messages.into_iter().for_each(|message| observer.log(message));
        report_frozen(&sharding_plan, &spec, observer);
    }
    // All ranks must use the same memory format.
    let is_contiguous = !spec.denoiser.prefers_channels_last(objective.kind);
    if world.all_reduce_max([is_contiguous.into()])? == [0] {
        guard(|| spec.denoiser.params().make_channels_last())?;
    }
    let mut optimizer = Optimizer::new(spec.denoiser.params(), objective.kind, sharding_plan, &world)?;
    if world.is_first() && world.size() > 1 {
        report_traffic(&optimizer, &spec, observer);
    }
    let writer = Writer::new(&world, spec.checkpoint.writers)?;
    world.run_on_first_rank(|| checkpoints.check_writable(&writer))?;
    checkpoints.check_shared_location(&writer, &world)?;
    let record = RunRecord { identity, settings };
    let snapshot_messages = snapshot_messages.unwrap_or_default();
    let progress = load_progress(&spec, &checkpoints, record, &snapshot_messages, &mut optimizer, observer)?;
    let metrics = open_metrics(&spec, progress.step, &slow_ranks)?;
    let profiler = spec.train.profile;
    let profiler = profiler.map(|config| Profiler::new(config, &spec.output, world.rank(), objective.device));
    Ok(Components {
        checkpointer: Checkpointer::new(checkpoints, writer, progress.step)?,
        step_runner: StepRunner::new(dataset, objective, optimizer, row_costs, cuda_graph_target),
        spec,
        schedule,
        progress,
        metrics,
        profiler,
    })
}

/// Opens on the first rank everything that metrics and previews are written to, for a run that
/// starts or resumes at `step`. `slow_ranks` are messages about slow ranks.
fn open_metrics(spec: &TrainSpec, step: u64, slow_ranks: &[String]) -> Result<MetricsReporter, Error> {
    let opened = spec.world.run_on_first_rank(|| {
        let prometheus = spec.train.prometheus.as_deref().map(PrometheusEndpoint::open).transpose()?;
        let (log, lost) = MetricsLog::open(&spec.output, step)?;
        let events = EventsLog::open(&spec.output, step, lost)?;
        slow_ranks.iter().try_for_each(|message| events.record_slow_rank(step, message))?;
        spec.preview.as_ref().map_or(Ok(()), |_| create_preview_folder(&spec.output))?;
        Ok(MetricsOutputs { log, events, prometheus })
    })?;
    Ok(MetricsReporter::new(opened))
}

/// Whether the devices of all ranks have bf16 arithmetic. All ranks call this together, because
/// they must compute in the same dtype.
///
/// # Errors
/// If a device does not answer.
fn do_all_ranks_have_bf16(spec: &TrainSpec) -> Result<bool, Error> {
    let own = has_native_bf16(spec.denoiser.params().device()).map_err(Error::from);
    let own = spec.world.propagate_error(own)?;
    Ok(spec.world.all_reduce_max([(!own).into()])? == [0])
}

fn report_frozen(sharding_plan: &ShardingPlan, spec: &TrainSpec, observer: &mut dyn Observer) {
    if !sharding_plan.frozen.is_empty() {
        let (frozen, all) = (sharding_plan.frozen.len(), spec.denoiser.params().named_parameters().len());
        observer.log(&format!("{frozen} of {all} parameters are frozen"));
    }
}

fn report_traffic(optimizer: &Optimizer, spec: &TrainSpec, observer: &mut dyn Observer) {
    let (train, world) = (&spec.train, &spec.world);
    let Traffic { gradients, weights } = optimizer.traffic(world, train.phase_micro_batches(0, world.size()));
    observer.log(&format!(
        "each of {} ranks sends {} of gradients and {} of weights per step, in {} buckets",
        world.size(),
        ByteSize(gradients),
        ByteSize(weights),
        optimizer.layout().buckets().len()
    ));
}

/// This build's version. `black_box` keeps it in one piece in the binary, where a test replaces it.
fn version() -> &'static str {
    std::hint::black_box(env!("CARGO_PKG_VERSION"))
}
