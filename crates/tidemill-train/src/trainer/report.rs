//! What a run says of its steps: metrics, rows that cannot be read, steps that are left out, what became of checkpoints.

use std::time::Duration;

use tidemill_store::stream::Batch;

use super::Trainer;
use super::anomaly::Sequel;
use super::step::{Numbers, PendingStep};
use crate::Error;
use crate::checkpoint::background_writer::Event as Saved;
use crate::data::BatchStream;
use crate::metrics::step_stats::Window;
use crate::metrics::{MetricsLog, StepMetrics, ValidationMetrics};
use crate::parallel::collectives::StepCommunication;
use crate::run_spec::Observer;

/// Why rows cannot be read: most reasons that are told at a time.
const REASONS: usize = 3;

/// What the steps of a window come to.
#[derive(Clone, Copy)]
struct Speed {
    images_per_second: f64,
    /// Of a rank.
    tflops: f64,
    data_wait: f64,
}

impl Trainer {
    /// Says why this rank's part of a batch goes without rows.
    pub(super) fn tell_unreadable(
        &self,
        phase: usize,
        batch: &Batch,
        batches: &dyn BatchStream,
        observer: &mut dyn Observer,
    ) {
        let expected = self.job.world.share_of(self.job.train.global_batch_of(phase));
        let missing = expected.saturating_sub(batch.sample_ids.len());
        if missing > 0 {
            let why: Vec<String> = batches.unreadable_rows().into_keys().take(REASONS).collect();
            let (step, why) = (self.progress.step + 1, why.join("; "));
            observer.log(&format!("step {step} goes without {missing} rows that cannot be read: {why}"));
        }
    }

    /// Says what became of checkpoints.
    ///
    /// # Errors
    /// [`Error::Overtaken`].
    pub(super) fn tell_saved(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        for event in self.saver.events().collect::<Vec<_>>() {
            match event {
                Saved::Committed { step } => {
                    self.committed = step;
                    if self.job.world.is_first() {
                        observer.on_checkpoint(step);
                        observer.log(&format!("checkpoint of step {step} is committed"));
                    }
                }
                Saved::Failed { step, why, again_in } => {
                    self.counts.failed_checkpoints += 1;
                    observer.log(&format!(
                        "checkpoint of step {step} cannot be written: {why}; training goes on, the next try is in {again_in:?}"
                    ));
                }
                Saved::Kept { why } => observer.log(&format!(
                    "checkpoints beyond checkpoint.keep cannot be removed: {why}; they stay, and training goes on"
                )),
                Saved::Overtaken => self.saver.finish(Duration::ZERO)?,
            }
        }
        Ok(())
    }

    /// Says that metrics cannot be written, once until they are.
    fn tell_logged(&mut self, problem: Option<Error>, observer: &mut dyn Observer) {
        match &problem {
            Some(problem) if !self.metrics_wait => observer.log(&format!(
                "metrics cannot be written: {problem}; training goes on, and they are kept until there is room"
            )),
            None if self.metrics_wait => observer.log("all metrics are written again"),
            _ => (),
        }
        self.metrics_wait = problem.is_some();
    }

    /// Takes the lines of the steps after `step` out of the file. If that cannot be written, they stay.
    pub(super) fn reopen_log(&mut self, step: u64, observer: &mut dyn Observer) {
        let Some(log) = &mut self.log else { return };
        match log.flush().and_then(|()| MetricsLog::open(&self.job.output, step)) {
            Ok(reopened) => (*log, self.metrics_wait) = (reopened, false),
            Err(problem) => {
                observer.log(&format!("the metrics of steps that are lost stay in the file: {problem}"))
            }
        }
    }

    /// The last try to write metrics that could not be.
    pub(super) fn finish_log(&mut self, observer: &mut dyn Observer) {
        if let Some(Err(problem)) = self.log.as_mut().map(MetricsLog::flush) {
            observer.log(&format!("the last metrics are lost: {problem}"));
        }
    }

    /// Waits for the steps since the last time and writes their metrics.
    pub(super) fn flush(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        self.flush_but(0, observer)
    }

    /// As [`Self::flush`], but a GPU is not waited for: of the step that it has just been told nothing is said yet, so that it has
    /// something to do meanwhile.
    pub(super) fn flush_past(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        self.flush_but(usize::from(self.objective.device.is_cuda()), observer)
    }

    fn flush_but(&mut self, last: usize, observer: &mut dyn Observer) -> Result<(), Error> {
        let count = self.pending.len().saturating_sub(last);
        let fetched: Vec<(PendingStep, Numbers)> = self
            .pending
            .drain(..count)
            .map(|step| step.fetch().map(|numbers| (step, numbers)))
            .collect::<Result<_, _>>()?;
        let Some((_, last)) = fetched.last() else { return Ok(()) };
        self.someone_writes = last.writing;
        let speed = self.speed(&fetched);
        let communication = std::mem::take(&mut self.communication);
        for (step, numbers) in &fetched {
            let communication = communication.over(fetched.len());
            if self.report(step, numbers, speed, communication, observer)? == Sequel::GoBack {
                // The steps that follow were made with weights that are given up.
                self.go_back(step.step, observer)?;
                break;
            }
        }
        self.window = Window::new();
        Ok(())
    }

    fn speed(&self, steps: &[(PendingStep, Numbers)]) -> Speed {
        let rows: f64 = steps.iter().map(|(_, numbers)| numbers.rows as f64).sum();
        let flops: f64 = steps.iter().map(|(step, numbers)| step.flops * numbers.rows as f64).sum();
        let (seconds, waited) = self.window.seconds();
        Speed {
            images_per_second: rows / seconds,
            tflops: flops / 1e12 / self.job.world.size() as f64 / seconds,
            data_wait: waited / seconds,
        }
    }

    fn report(
        &mut self,
        pending: &PendingStep,
        numbers: &Numbers,
        speed: Speed,
        communication: StepCommunication,
        observer: &mut dyn Observer,
    ) -> Result<Sequel, Error> {
        let step = pending.step;
        if numbers.rows == 0 {
            return Err(Error::Dataset(format!("none of the rows of step {step} can be read")));
        }
        self.progress.samples += numbers.rows;
        let expected = self.job.train.global_batch_of(pending.phase) as u64;
        self.counts.skipped_rows += expected.saturating_sub(numbers.rows);
        let metrics = StepMetrics {
            step,
            phase: pending.phase,
            resolution: self.job.train.phase[pending.phase].resolution,
            samples: self.progress.samples,
            loss: numbers.loss,
            grad_norm: numbers.grad_norm,
            learning_rate: pending.learning_rate,
            images_per_second: speed.images_per_second,
            tflops: speed.tflops,
            mfu: self.job.train.peak_tflops.map(|peak| speed.tflops / peak),
            data_wait: speed.data_wait,
            communication,
            memory_mib: numbers.memory.clone(),
            gpu_memory_mib: numbers.gpu_memory.clone(),
            loss_by_timestep: numbers.loss_by_timestep.clone(),
            checkpoint: self.committed,
            validation: pending.validation.clone(),
        };
        let logged = self.log.as_mut().map_or(Ok(()), |log| log.step(&metrics));
        self.tell_logged(logged.err(), observer);
        if let Some(ValidationMetrics { loss, ema_loss, .. }) = metrics.validation {
            (self.counts.validation_loss, self.counts.validation_ema_loss) = (Some(loss), ema_loss);
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.show(&metrics, self.counts);
        }
        observer.on_step(&metrics, self.job.train.total_steps());
        self.examine(&metrics, pending, observer)
    }
}
