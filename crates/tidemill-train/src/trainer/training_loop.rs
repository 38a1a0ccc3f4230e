//! The training loop.

use std::time::Instant;

use serde_json::Value;
use tidemill_models::SchedulerConfig;
use tidemill_store::stream::Batch;
use tidemill_torch::install_cpu_allocator;

use super::anomaly::nan_and_spikes::{AnomalyTracker, NextAction};
use super::anomaly::rollback::{no_checkpoint, rollback_message};
use super::checkpointer::Checkpointer;
use super::gpu_setup::{release_gpu, set_up_gpu};
use super::metrics_reporter::{
    FinishedStep, MetricsReporter, WindowMetrics, new_step_metrics, report_unreadable_rows,
};
use super::out_of_memory::explain_step_error;
use super::setup::collective_setup::{Components, set_up};
use super::step::step_runner::{StepContext, StepRunner};
use super::telemetry::Telemetry;
use crate::Error;
use crate::checkpoint::Progress;
use crate::data::wait_for_batch::{BatchRequest, wait_for_batch};
use crate::data::{BatchStream, Phase};
use crate::evaluation::preview::report_preview;
use crate::evaluation::validation_loss::{Validation, validation_message};
use crate::metrics::profiler::{Profiler, report_profile};
use crate::metrics::step_metrics::RunCounters;
use crate::metrics::throughput::ThroughputWindow;
use crate::observer::{Activity, Observer};
use crate::outcome::TrainOutcome;
use crate::train_spec::TrainSpec;

/// Trains from the last checkpoint, or from the start if there is none. Each rank calls this with
/// its own spec.
///
/// # Errors
/// If the configuration, the dataset, the model and the checkpoint do not fit each other (before
/// the first step), or a step or a checkpoint fails.
pub fn train(spec: TrainSpec, observer: &mut dyn Observer) -> Result<TrainOutcome, Error> {
    install_cpu_allocator();
    let mut trainer = Trainer::new(set_up(spec, observer)?);
    let outcome = trainer.run(observer);
    trainer.metrics.finish(observer);
    // A broken GPU fails in many ways, and this is why.
    outcome.map_err(|error| trainer.telemetry.check_gpu().err().unwrap_or(error))
}

struct Trainer {
    spec: TrainSpec,
    /// The noise schedule to train with.
    schedule: SchedulerConfig,
    /// How far the run is: what a checkpoint stores besides weights.
    progress: Progress,
    step_runner: StepRunner,
    checkpointer: Checkpointer,
    metrics: MetricsReporter,
    anomalies: AnomalyTracker,
    profiler: Option<Profiler>,
    /// What this rank's GPU and machine do.
    telemetry: Telemetry,
    resumed_at: u64,
    /// A rollback has led to another phase, so that the open stream does not fit any more.
    must_reopen_stream: bool,
}

impl Trainer {
    fn new(components: Components) -> Self {
        let Components { spec, schedule, progress, step_runner, checkpointer, metrics, profiler } =
            components;
        Self {
            anomalies: AnomalyTracker::new(&spec.train),
            telemetry: Telemetry::start(&spec),
            spec,
            schedule,
            resumed_at: progress.step,
            progress,
            step_runner,
            checkpointer,
            metrics,
            profiler,
            must_reopen_stream: false,
        }
    }

    fn run(&mut self, observer: &mut dyn Observer) -> Result<TrainOutcome, Error> {
        let (kind, graph_device) = (self.step_runner.objective.kind, self.step_runner.cuda_graph_device());
        let gpu = set_up_gpu(&self.spec, kind, graph_device, observer)?;
        let outcome = self.run_phases(observer);
        release_gpu(gpu, outcome.is_err() && self.spec.world.size() > 1);
        outcome
    }

    /// Trains all phases, or until a rank is to stop, and saves the last checkpoint.
    fn run_phases(&mut self, observer: &mut dyn Observer) -> Result<TrainOutcome, Error> {
        let started = Instant::now();
        let samples_before = self.progress.samples;
        while let Some((phase, first_step)) = self.spec.train.phase_at(self.progress.step) {
            let [stop] = self.spec.world.all_reduce_max([observer.should_stop().into()])?;
            if stop != 0 {
                break;
            }
            let end = first_step + self.spec.train.phase[phase].steps;
            self.run_phase(phase, end, observer)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        if let Some(profiler) = &mut self.profiler {
            report_profile(self.progress.step, profiler.save(self.progress.step), observer);
        }
        observer.on_activity(self.progress.step, Activity::FinalCheckpoint);
        self.checkpointer.save(&self.spec, &self.step_runner.optimizer, &self.progress)?;
        self.checkpointer.finish(&self.spec.world, observer)?;
        Ok(self.outcome(self.progress.samples - samples_before, seconds))
    }

    /// Trains until `end` steps are done, or until a rank is to stop.
    fn run_phase(&mut self, phase: usize, end: u64, observer: &mut dyn Observer) -> Result<(), Error> {
        let position = self.data_position(phase)?;
        let mut stream = self.spec.data.open_stream(&self.phase(phase), position.as_ref())?;
        // From here on, nothing refuses the run.
        self.checkpointer.take_over_run(&self.spec.world, &self.progress.identity)?;
        self.metrics.window = ThroughputWindow::new();
        self.must_reopen_stream = false;
        // Steps of another phase have other shapes.
        self.step_runner.clear_cuda_graphs();
        while self.progress.step < end && !self.must_reopen_stream {
            let Some(batch) = self.next_batch(&mut *stream, observer)? else { break };
            report_unreadable_rows(&self.phase(phase), self.progress.step + 1, &batch, &*stream, observer);
            self.profiler.as_mut().map_or(Ok(()), Profiler::before_step)?;
            self.train_step(phase, &batch, stream.peek())?;
            if let Some(profiler) = &mut self.profiler {
                report_profile(self.progress.step, profiler.after_step(self.progress.step), observer);
            }
            self.validate_if_due(phase, observer)?;
            self.log_if_due(observer)?;
            self.checkpoint_if_due(phase, end, &*stream, observer)?;
            self.checkpointer.report_events(&self.spec.world, observer)?;
            self.draw_preview_if_due(observer)?;
        }
        self.log_steps(0, observer)?;
        if !self.must_reopen_stream {
            self.update_data_position(phase, end, &*stream)?;
        }
        Ok(())
    }

    /// Waits for the next batch; none if any rank is to stop.
    fn next_batch(
        &mut self,
        stream: &mut dyn BatchStream,
        observer: &mut dyn Observer,
    ) -> Result<Option<Batch>, Error> {
        let (step, world) = (self.progress.step, &self.spec.world);
        let (purpose, stall_seconds) = (format!("step {}", step + 1), self.spec.train.stream.stall_seconds);
        let request = BatchRequest { step, purpose: &purpose, stall_seconds };
        let (batch, waited) = wait_for_batch(stream, request, world, observer)?;
        self.metrics.window.add_data_wait(waited.data);
        self.step_runner.add_rank_wait(world, waited.ranks);
        Ok(batch)
    }

    /// Starts one optimizer step. Its results are reported later.
    fn train_step(&mut self, phase: usize, batch: &Batch, next_batch: Option<&Batch>) -> Result<(), Error> {
        self.telemetry.check_gpu()?;
        let context = StepContext {
            telemetry: self.telemetry.summary(),
            phase,
            step: self.progress.step,
            skip_above: self.anomalies.skip_above(&self.progress.recent_losses),
            is_writing_checkpoint: self.checkpointer.is_writing(),
        };
        let result = self.step_runner.run_step(&self.spec, context, batch, next_batch);
        let pending = result.map_err(|error| {
            let ranks = self.spec.world.size();
            explain_step_error(error, &self.spec.train, ranks, &self.step_runner, context, batch.bucket)
        })?;
        self.progress.step += 1;
        self.metrics.add_pending_step(pending);
        Ok(())
    }

    fn log_if_due(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if !self.progress.step.is_multiple_of(self.spec.train.log_every) {
            return Ok(());
        }
        // A GPU is not waited for: the step that it has just been given is logged later, so that
        // the GPU always has work.
        let keep_pending = usize::from(self.step_runner.objective.device.is_cuda());
        self.log_steps(keep_pending, observer)
    }

    /// Waits for all steps since the last call except the last `keep_pending`, and writes their
    /// metrics. Rolls back if one of them calls for it.
    fn log_steps(&mut self, keep_pending: usize, observer: &mut dyn Observer) -> Result<(), Error> {
        let mut steps = self.metrics.take_finished_steps(keep_pending)?;
        let Some(((_, last), earlier)) = steps.split_last_mut() else { return Ok(()) };
        // It changes once a second, and has many numbers of each rank: once in a window is enough.
        earlier.iter_mut().for_each(|(_, results)| results.telemetry = None);
        self.checkpointer.is_any_rank_writing = last.is_any_rank_writing;
        let window = WindowMetrics {
            throughput: self.metrics.throughput(&steps, self.spec.world.size()),
            communication: self.step_runner.take_communication().per_step(steps.len()),
        };
        for step in &steps {
            if self.report_step(step, window, observer)? == NextAction::RollBack {
                // The steps after it were computed with weights that the rollback discards.
                self.roll_back(step.0.step, observer)?;
                break;
            }
        }
        self.metrics.window = ThroughputWindow::new();
        Ok(())
    }

    fn report_step(
        &mut self,
        finished: &FinishedStep,
        window: WindowMetrics,
        observer: &mut dyn Observer,
    ) -> Result<NextAction, Error> {
        let (pending, results) = finished;
        let (step, train) = (pending.step, &self.spec.train);
        if results.rows == 0 {
            return Err(Error::Dataset(format!("none of the rows of step {step} can be read")));
        }
        let samples = self.progress.samples + results.rows;
        let checkpoint = self.checkpointer.last_committed_step;
        let metrics = new_step_metrics(train, finished, window, samples, checkpoint);
        let counters = RunCounters {
            failed_checkpoints: self.checkpointer.failed_writes,
            checkpoint_seconds: self.checkpointer.stall_seconds,
            skipped_steps: self.anomalies.skipped_steps,
            rollbacks: self.anomalies.rollbacks,
            ..RunCounters::default()
        };
        let expected_rows = train.phase_global_batch(pending.phase) as u64;
        self.metrics.skipped_rows += expected_rows.saturating_sub(results.rows);
        self.metrics.report_step(&metrics, counters, train.total_steps(), observer);
        self.progress.samples = metrics.samples;
        let recent_losses = &mut self.progress.recent_losses;
        self.anomalies.examine_step(&self.spec, &metrics, pending, recent_losses, observer)
    }

    /// Returns to the last checkpoint because of `step`, and continues with batches that have not
    /// come yet.
    fn roll_back(&mut self, step: u64, observer: &mut dyn Observer) -> Result<(), Error> {
        self.checkpointer.wait_until_written(&self.spec.world, observer)?;
        let optimizer = &mut self.step_runner.optimizer;
        let restored = self.checkpointer.restore(&self.spec, &self.progress.identity, optimizer, observer)?;
        let restored = restored.ok_or_else(|| no_checkpoint(step, &self.spec.output))?;
        self.anomalies.rollbacks += 1;
        let is_other_phase = restored.phase != self.progress.phase;
        if self.spec.world.is_first() {
            let seconds = self.checkpointer.seconds_since_save(restored.step);
            observer.log(&rollback_message(step, &restored, seconds, is_other_phase));
            self.metrics.roll_back(&self.spec.output, (step, restored.step), seconds, observer);
        }
        self.must_reopen_stream = is_other_phase;
        if is_other_phase {
            (self.progress.phase, self.progress.stream) = (restored.phase, restored.stream);
        }
        self.progress.step = restored.step;
        self.progress.samples = restored.samples;
        self.progress.recent_losses = restored.recent_losses;
        self.checkpointer.reset_to(restored.step);
        self.metrics.drop_pending_steps();
        // Loading may have moved tensors that recorded steps read.
        self.step_runner.clear_cuda_graphs();
        Ok(())
    }

    /// Computes the validation loss if it is due, so that the metrics of the last step have it.
    fn validate_if_due(&mut self, phase: usize, observer: &mut dyn Observer) -> Result<(), Error> {
        let step = self.progress.step;
        let config = self.spec.train.validation.as_ref();
        let config = config.filter(|config| step.is_multiple_of(config.every));
        let (Some(config), Some(rows)) = (config, &self.spec.validation_set) else { return Ok(()) };
        // The time of steps that the device still has to do is not the validation's.
        self.metrics.wait_for_last_step()?;
        let started = Instant::now();
        let validation = Validation {
            rows,
            max_rows: config.rows,
            step,
            phase: self.phase(phase),
            dataset: &self.step_runner.dataset,
            objective: &self.step_runner.objective,
            denoiser: &*self.spec.denoiser,
        };
        let Some(validation) = validation.run(&self.step_runner.optimizer, observer)? else {
            return Ok(());
        };
        if self.spec.world.is_first() {
            observer.log(&validation_message(step, &validation));
        }
        self.metrics.window.exclude(started.elapsed());
        self.metrics.add_validation(validation);
        self.log_steps(0, observer)
    }

    /// Saves a checkpoint if one is due: at intervals, and at the end of a phase that another
    /// follows. A run that rolls back from the next phase then finds a checkpoint at its start, and
    /// sees no batch twice.
    fn checkpoint_if_due(
        &mut self,
        phase: usize,
        end: u64,
        stream: &dyn BatchStream,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let step = self.progress.step;
        let is_phase_end = step == end && self.spec.train.phase_at(end).is_some();
        if !self.checkpointer.update_due(is_phase_end || step.is_multiple_of(self.spec.checkpoint.every)) {
            return Ok(());
        }
        // A checkpoint must not hold the weights of a step whose loss was not examined yet.
        self.log_steps(0, observer)?;
        if !self.checkpointer.is_any_rank_writing && !self.must_reopen_stream {
            self.update_data_position(phase, end, stream)?;
            self.checkpointer.save(&self.spec, &self.step_runner.optimizer, &self.progress)?;
        }
        Ok(())
    }

    /// Draws previews with the averaged weights if they are due. The time for that does not count
    /// as training time. All ranks take part, because each has a part of the averages.
    fn draw_preview_if_due(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let step = self.progress.step;
        let Some(preview) = self.spec.preview.as_ref().filter(|preview| preview.is_due(step)) else {
            return Ok(());
        };
        // The time of steps that the device still has to do is not the previews'.
        self.metrics.wait_for_last_step()?;
        let started = Instant::now();
        let (denoiser, kind) = (&*self.spec.denoiser, self.step_runner.objective.kind);
        let phase = self.spec.train.phase_at(step.saturating_sub(1)).map_or(0, |(phase, _)| phase);
        let resolution = self.phase(phase).resolution();
        let draw = || preview.draw_grid(denoiser, &self.schedule, kind, resolution);
        let draw_on_first = || self.metrics.log.is_some().then(draw);
        let grid = self.step_runner.optimizer.with_ema_weights(draw_on_first)?;
        if let (Some(grid), Some(log)) = (grid, &mut self.metrics.log) {
            report_preview(grid, step, &self.spec.output, log, observer);
        }
        self.metrics.window.exclude(started.elapsed());
        Ok(())
    }

    /// The position in the data at which a phase starts or continues; none at the start of the
    /// first phase. If the run ended before, or stopped in a phase that has become shorter, the
    /// checkpoint's position is in an earlier phase.
    fn data_position(&self, phase: usize) -> Result<Option<Value>, Error> {
        let Progress { phase: last, stream, .. } = &self.progress;
        match stream {
            Some(_) if *last < phase => {
                let earlier = self.spec.data.open_stream(&self.phase(*last), stream.as_ref())?;
                earlier.state(Some(&self.phase(phase))).map(Some)
            }
            position => Ok(position.clone()),
        }
    }

    /// Stores the position in the data in the progress: in `phase`, or at the start of the next one
    /// if all `end` steps are done. All ranks call this together.
    fn update_data_position(
        &mut self,
        phase: usize,
        end: u64,
        stream: &dyn BatchStream,
    ) -> Result<(), Error> {
        let next = self.spec.train.phase_at(end).filter(|_| self.progress.step == end);
        let next = next.map(|(index, _)| self.phase(index));
        let state = stream.state(next.as_ref())?;
        self.progress.phase = next.map_or(phase, |next| next.index);
        self.progress.stream = Some(state);
        Ok(())
    }

    fn phase(&self, index: usize) -> Phase<'_> {
        Phase { index, train: &self.spec.train, seed: self.spec.seed, world: &self.spec.world }
    }

    fn outcome(&self, samples: u64, seconds: f64) -> TrainOutcome {
        let losses = &self.progress.recent_losses;
        TrainOutcome {
            steps: self.progress.step,
            finished: self.progress.step >= self.spec.train.total_steps(),
            loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
            images_per_second: samples as f64 / seconds.max(1e-9),
            seconds,
            resumed_at: self.resumed_at,
            skipped_rows: self.metrics.skipped_rows,
            skipped_steps: self.anomalies.skipped_steps,
            rollbacks: self.anomalies.rollbacks,
            checkpoint_seconds: self.checkpointer.stall_seconds,
        }
    }
}
