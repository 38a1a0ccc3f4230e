//! The trainer: set-up, one `train_step` (`step.rs`), one loop. Each concern lives behind one small part: the stream gives
//! batches, the objective the loss, the optimizer the weights, the checkpoints safety, the metrics sight.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use serde_json::Value;
use tch::Cuda;
use tidemill_models::{PredictionType, SchedulerConfig, TimestepSpacing};
use tidemill_store::{Bucket, DatasetSpec};
use tidemill_torch::{SideStream, guard, install_cpu_allocator};

use crate::Error;
use crate::checkpoint::background_writer::Saver;
use crate::checkpoint::{Checkpoints, Progress, Writer};
use crate::config::TrainConfig;
use crate::data::{BatchStream, Phase};
use crate::metrics::profiler::Profiler;
use crate::metrics::prometheus::Endpoint;
use crate::metrics::step_stats::Window;
use crate::metrics::{Counts, MetricsLog};
use crate::objective::Objective;
use crate::optimizer::{Optimizer, Traffic};
use crate::parallel::collectives::StepCommunication;
use crate::parallel::health_check;
use crate::run_spec::{Activity, Observer, TrainOutcome, TrainSpec};
use crate::trainer::cuda_graph::Recorded;
use crate::trainer::prefetch::Ahead;
use crate::trainer::setup::{Begun, Setup, all_have_bf16, go_on};
use crate::trainer::step::PendingStep;

mod anomaly;
pub(crate) mod checks;
mod cuda_graph;
mod intervals;
mod prefetch;
mod report;
mod setup;
mod step;
mod validation;
mod wait_for_batch;

/// How long the last checkpoint is tried to be written when a run ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `job` from its last checkpoint, or from the start. Of several ranks each calls it with its own.
///
/// # Errors
/// If the configuration, dataset, model and checkpoint do not fit each other (before the first
/// step), or a step, a checkpoint or a metrics file fails.
pub fn train(job: TrainSpec, observer: &mut dyn Observer) -> Result<TrainOutcome, Error> {
    install_cpu_allocator();
    let mut trainer = Trainer::new(job, observer)?;
    let outcome = trainer.run(observer);
    trainer.finish_log(observer);
    outcome
}

/// The noise schedule a run trains with: the model's, with the run file's changes. `StableDiffusionPipeline`, which opens what is
/// exported, has samplers begin at timestep 1 whatever the model's file says, so pictures of training do, too. With zero terminal SNR
/// they begin at pure noise (Lin et al., 2023, section 3.3), from which predicted noise gives no image.
pub fn training_scheduler_config(train: &TrainConfig, scheduler: &SchedulerConfig) -> SchedulerConfig {
    let mut config = scheduler.clone();
    config.prediction_type = train.prediction.unwrap_or(config.prediction_type);
    config.rescale_betas_zero_snr = train.zero_terminal_snr.unwrap_or(config.rescale_betas_zero_snr);
    if config.rescale_betas_zero_snr && config.prediction_type != PredictionType::Epsilon {
        config.timestep_spacing = TimestepSpacing::Trailing;
    }
    config.steps_offset = 1;
    config
}

struct Trainer {
    job: TrainSpec,
    spec: DatasetSpec,
    schedule: SchedulerConfig,
    /// Floating-point operations for a row of each bucket, forward and backward.
    flops: BTreeMap<Bucket, f64>,
    objective: Objective,
    optimizer: Optimizer,
    checkpoints: Arc<Checkpoints>,
    saver: Saver,
    /// Until the run is taken over from whoever has trained it before.
    writer: Option<Writer>,
    /// The last step whose state was handed to the saver, and the last that is written.
    saved: u64,
    /// When it was.
    saved_at: Instant,
    committed: u64,
    /// Whether a checkpoint was due while the last was still being written.
    owed: bool,
    /// Of the first rank only.
    log: Option<MetricsLog>,
    /// Whether some of its lines could not be written yet.
    metrics_wait: bool,
    endpoint: Option<Endpoint>,
    profiler: Option<Profiler>,
    progress: Progress,
    ahead: Ahead,
    /// The GPU that steps are recorded on, if they are to be, and those that are.
    recorded_on: Option<usize>,
    recorded: Recorded,
    /// Steps whose numbers are still on the device.
    pending: VecDeque<PendingStep>,
    /// Whether any rank was still writing a checkpoint, as far as is known.
    someone_writes: bool,
    /// Since the last line of metrics.
    window: Window,
    communication: StepCommunication,
    resumed_at: u64,
    counts: Counts,
    /// Steps that were left out just now.
    skipped_in_a_row: u64,
    /// How often the run went back to a checkpoint from the steps up to this one.
    stuck: (u64, u32),
    /// Whether the stream does not fit the phase any more.
    reopen: bool,
}

impl Trainer {
    fn new(mut job: TrainSpec, observer: &mut dyn Observer) -> Result<Self, Error> {
        let world = job.world.clone();
        let checkpoints = Checkpoints::open(&job.checkpoint, &job.output).map(Arc::new);
        let checkpoints = world.together(checkpoints)?;
        let checkpoint = checkpoints.stands(&world)?;
        let remarks = checkpoint.as_ref().map(|checkpoint| go_on(&mut job, checkpoint));
        let has_bf16 = all_have_bf16(&job)?;
        let Setup {
            spec,
            schedule,
            flops,
            identity,
            settings,
            objective,
            distribution,
            recorded_on,
            remarks: on_settings,
        } = world.together(Setup::of(&mut job, has_bf16))?;
        world.agree(&serde_json::json!({
            "version": version(), "train": settings, "checkpoint": job.checkpoint, "run": identity,
        }))?;
        // While a denoiser of the user's own still has the weights that it came with.
        checkpoint.map_or(Ok(()), |checkpoint| checkpoints.check_run(&checkpoint, &identity))?;
        health_check::check(&job.train.health, &world, objective.device, observer)?;
        if world.is_first() {
            on_settings.into_iter().for_each(|remark| observer.log(remark));
        }
        if world.is_first() && !distribution.frozen.is_empty() {
            let (frozen, all) = (distribution.frozen.len(), job.denoiser.params().named_parameters().len());
            observer.log(&format!("{frozen} of {all} parameters are frozen"));
        }
        // All ranks lay parameters out alike.
        let contiguous = !job.denoiser.prefers_channels_last(objective.kind);
        if world.largest([contiguous.into()])? == [0] {
            guard(|| job.denoiser.params().make_channels_last())?;
        }
        let mut optimizer = Optimizer::new(job.denoiser.params(), objective.kind, distribution, &world)?;
        if world.is_first() && world.size() > 1 {
            let Traffic { gradients, weights } = optimizer.traffic(&world);
            observer.log(&format!(
                "each of {} ranks sends {} of gradients and {} of weights per step, in {} buckets",
                world.size(),
                ByteSize(gradients),
                ByteSize(weights),
                optimizer.layout().0.buckets().len()
            ));
        }
        let writer = Writer::new(&world, job.checkpoint.writers)?;
        world.by_first(|| checkpoints.announce(&writer))?;
        checkpoints.check_shared(&writer, &world)?;
        let begun = Begun { identity, settings, remarks: remarks.unwrap_or_default() };
        let progress = begun.progress(&job, &checkpoints, &mut optimizer, observer)?;
        let opened = world.by_first(|| {
            let endpoint = job.train.prometheus.as_deref().map(Endpoint::open).transpose()?;
            let log = MetricsLog::open(&job.output, progress.step)?;
            if let Some(preview) = &mut job.preview {
                preview.open(&job.output)?;
            }
            Ok((log, endpoint))
        })?;
        let (log, endpoint) = opened.map_or((None, None), |(log, endpoint)| (Some(log), endpoint));
        let resumed_at = progress.step;
        let profiler = job
            .train
            .profile
            .map(|config| Profiler::new(config, &job.output, world.rank(), objective.device));
        Ok(Self {
            saver: Saver::start(checkpoints.clone(), writer.clone())?,
            writer: Some(writer),
            checkpoints,
            job,
            spec,
            schedule,
            flops,
            objective,
            optimizer,
            saved: resumed_at,
            saved_at: Instant::now(),
            owed: false,
            log,
            metrics_wait: false,
            endpoint,
            profiler,
            committed: resumed_at,
            progress,
            ahead: Ahead::default(),
            recorded_on,
            recorded: Recorded::default(),
            pending: VecDeque::new(),
            someone_writes: false,
            window: Window::new(),
            communication: StepCommunication::default(),
            resumed_at,
            counts: Counts::default(),
            skipped_in_a_row: 0,
            stuck: (0, 0),
            reopen: false,
        })
    }

    fn run(&mut self, observer: &mut dyn Observer) -> Result<TrainOutcome, Error> {
        let total = self.job.train.total_steps();
        if self.objective.device.is_cuda() && !self.job.data.encodes_in_process() {
            // Steps have few shapes, and many of them: cuDNN is to try which of its kernels are the fastest for each. It would for
            // encoders of this process, too, for each size of a unit's last batch anew.
            Cuda::cudnn_set_benchmark(true);
        }
        let _stream = self.recorded_on.map(SideStream::enter).transpose()?;
        let started = Instant::now();
        let samples_before = self.progress.samples;
        while let Some((phase, first)) = self.job.train.phase_at(self.progress.step) {
            let [stop] = self.job.world.largest([observer.should_stop().into()])?;
            if stop != 0 {
                break;
            }
            let end = first + self.job.train.phase[phase].steps;
            self.run_phase(phase, end, observer)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        self.save_profile(Profiler::save, observer);
        observer.on_activity(self.progress.step, Activity::FinalCheckpoint);
        self.checkpoint()?;
        let saved = self.saver.finish(PATIENCE);
        self.tell_saved(observer)?;
        // It is the first that commits: whoever goes on before that would read an older checkpoint, or none.
        self.job.world.together(saved)?;
        Ok(TrainOutcome {
            steps: self.progress.step,
            finished: self.progress.step >= total,
            loss: self.recent_loss(),
            images_per_second: (self.progress.samples - samples_before) as f64 / seconds.max(1e-9),
            seconds,
            resumed_at: self.resumed_at,
            skipped_rows: self.counts.skipped_rows,
            skipped_steps: self.counts.skipped_steps,
            rollbacks: self.counts.rollbacks,
            checkpoint_seconds: self.counts.checkpoint_seconds,
        })
    }

    /// Trains until step `end` or until any rank is to stop.
    fn run_phase(&mut self, phase: usize, end: u64, observer: &mut dyn Observer) -> Result<(), Error> {
        let place = self.place_in(phase)?;
        let mut batches = self.job.data.open_stream(&self.phase(phase), place.as_ref())?;
        // Only now there is nothing left that could refuse the run.
        if let Some(writer) = self.writer.take() {
            self.job.world.by_first(|| self.checkpoints.take_over(&self.progress.identity, &writer))?;
        }
        self.window = Window::new();
        self.reopen = false;
        // Steps of another phase have other shapes.
        self.recorded.clear();
        while self.progress.step < end && !self.reopen {
            let Some(batch) = self.next_batch(&mut *batches, observer)? else { break };
            self.tell_unreadable(phase, &batch, &*batches, observer);
            self.profiler.as_mut().map_or(Ok(()), Profiler::before_step)?;
            self.train_step(phase, &batch, batches.peek())?;
            self.save_profile(Profiler::after_step, observer);
            self.validate(phase, observer)?;
            if self.progress.step.is_multiple_of(self.job.train.log_every) {
                self.flush_past(observer)?;
            }
            // A run that goes back finds one from where this phase's data end, and sees no batch again.
            self.owed |= self.progress.step == end && self.job.train.phase_at(end).is_some();
            self.at_intervals(&|trainer| trainer.stand(phase, end, &*batches), observer)?;
        }
        self.flush(observer)?;
        if !self.reopen {
            self.stand(phase, end, &*batches)?;
        }
        Ok(())
    }

    /// Where a phase goes on in the data; `None` at the beginning of the first. A run that had ended, or stopped in a phase that is
    /// shorter now, stands in a phase before it.
    fn place_in(&self, phase: usize) -> Result<Option<Value>, Error> {
        let Progress { phase: last, stream, .. } = &self.progress;
        match stream {
            Some(_) if *last < phase => {
                let before = self.job.data.open_stream(&self.phase(*last), stream.as_ref())?;
                before.state(Some(&self.phase(phase))).map(Some)
            }
            place => Ok(place.clone()),
        }
    }

    /// Notes where the data stand: in a phase that ends at step `end`, or at the beginning of the next one. All ranks do
    /// so together.
    fn stand(&mut self, phase: usize, end: u64, batches: &dyn BatchStream) -> Result<(), Error> {
        let next = self.job.train.phase_at(end).filter(|_| self.progress.step == end);
        let next = next.map(|(index, _)| self.phase(index));
        let stream = batches.state(next.as_ref())?;
        self.progress.phase = next.map_or(phase, |next| next.index);
        self.progress.stream = Some(stream);
        Ok(())
    }

    fn phase(&self, index: usize) -> Phase<'_> {
        Phase { index, train: &self.job.train, seed: self.job.seed, world: &self.job.world }
    }

    fn recent_loss(&self) -> Option<f64> {
        let recent = &self.progress.recent_losses;
        (!recent.is_empty()).then(|| recent.iter().sum::<f64>() / recent.len() as f64)
    }
}

/// This build's version, in one piece in the binary, where a test changes it.
fn version() -> &'static str {
    std::hint::black_box(env!("CARGO_PKG_VERSION"))
}
