//! Reporting of steps: their results are collected from the device, and written as metrics once
//! there is a line to write.

use std::collections::VecDeque;
use std::path::Path;

use tidemill_store::stream::Batch;

use crate::Error;
use crate::config::TrainConfig;
use crate::data::{BatchStream, Phase};
use crate::metrics::events_log::EventsLog;
use crate::metrics::json_lines_log::LostSteps;
use crate::metrics::metrics_log::MetricsLog;
use crate::metrics::prometheus::PrometheusEndpoint;
use crate::metrics::step_metrics::RunCounters;
use crate::metrics::throughput::{Throughput, ThroughputWindow};
use crate::metrics::{StepMetrics, ValidationMetrics};
use crate::observer::Observer;
use crate::parallel::communication_time::StepCommunication;
use crate::trainer::step::step_results::{PendingStep, StepResults};

/// The most reasons for unreadable rows that a message lists.
const LISTED_REASONS: usize = 3;

/// A step with its results.
pub(crate) type FinishedStep = (PendingStep, StepResults);

/// What the steps of a window have in common: the averages over the window.
#[derive(Clone, Copy)]
pub(crate) struct WindowMetrics {
    pub throughput: Throughput,
    /// Communication of one step.
    pub communication: StepCommunication,
}

/// Where metrics and events go.
pub(crate) struct MetricsOutputs {
    pub log: MetricsLog,
    pub events: EventsLog,
    /// None without `train.prometheus`.
    pub prometheus: Option<PrometheusEndpoint>,
}

/// Collects the results of steps and reports them.
pub(crate) struct MetricsReporter {
    /// The metrics files; on the first rank only.
    pub log: Option<MetricsLog>,
    /// What cost the run time; on the first rank only.
    events: Option<EventsLog>,
    /// Whether some metrics could not be written yet.
    has_unwritten_metrics: bool,
    /// The Prometheus endpoint, if `train.prometheus` is set; on the first rank only.
    prometheus: Option<PrometheusEndpoint>,
    /// Steps whose results are still on the device, in order.
    pending_steps: VecDeque<PendingStep>,
    /// Measures throughput since the last line of metrics.
    pub window: ThroughputWindow,
    /// Rows missing in steps because they could not be read.
    pub skipped_rows: u64,
    /// The last validation loss, with current and with averaged weights.
    last_validation: (Option<f64>, Option<f64>),
}

impl MetricsReporter {
    /// A reporter that writes to these. Ranks other than the first have none.
    pub fn new(outputs: Option<MetricsOutputs>) -> Self {
        let (log, events, prometheus) = outputs
            .map_or((None, None, None), |MetricsOutputs { log, events, prometheus }| {
                (Some(log), Some(events), prometheus)
            });
        Self {
            log,
            events,
            has_unwritten_metrics: false,
            prometheus,
            pending_steps: VecDeque::new(),
            window: ThroughputWindow::new(),
            skipped_rows: 0,
            last_validation: (None, None),
        }
    }

    /// Adds a step that was just started.
    pub fn add_pending_step(&mut self, step: PendingStep) {
        self.pending_steps.push_back(step);
    }

    /// Waits until the device has done all steps that were started.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait_for_last_step(&self) -> Result<(), Error> {
        self.pending_steps.back().map(PendingStep::wait).transpose().map(drop)
    }

    /// Adds the validation loss to the metrics of the last step.
    pub fn add_validation(&mut self, validation: ValidationMetrics) {
        if let Some(step) = self.pending_steps.back_mut() {
            step.validation = Some(validation);
        }
    }

    /// Forgets steps that a rollback undoes.
    pub fn drop_pending_steps(&mut self) {
        self.pending_steps.clear();
    }

    /// Waits for all pending steps except the last `keep_pending`, and returns them with their
    /// results.
    ///
    /// # Errors
    /// If the device fails.
    pub fn take_finished_steps(&mut self, keep_pending: usize) -> Result<Vec<FinishedStep>, Error> {
        let count = self.pending_steps.len().saturating_sub(keep_pending);
        let steps = self.pending_steps.drain(..count);
        steps.map(|step| step.wait().map(|results| (step, results))).collect()
    }

    /// The throughput of steps since the window began, on `ranks` ranks.
    pub fn throughput(&self, steps: &[FinishedStep], ranks: usize) -> Throughput {
        let rows: f64 = steps.iter().map(|(_, results)| results.rows as f64).sum();
        let flops: f64 = steps.iter().map(|(step, results)| step.flops_per_row * results.rows as f64).sum();
        self.window.throughput(rows, flops, ranks)
    }

    /// Writes the metrics of a step to all places. If a file cannot be written, the user hears of
    /// it once, and training continues.
    pub fn report_step(
        &mut self,
        metrics: &StepMetrics,
        counters: RunCounters,
        total_steps: u64,
        observer: &mut dyn Observer,
    ) {
        let written = self.log.as_mut().map_or(Ok(()), |log| log.write_step(metrics));
        self.report_log_problem(written.err(), observer);
        if let Some(Err(problem)) = self.events.as_mut().map(EventsLog::finish_resume) {
            report_event_problem(&problem, observer);
        }
        if let Some(ValidationMetrics { loss, ema_loss, .. }) = metrics.validation {
            self.last_validation = (Some(loss), ema_loss);
        }
        if let Some(prometheus) = &self.prometheus {
            let (validation_loss, validation_ema_loss) = self.last_validation;
            let skipped_rows = self.skipped_rows;
            prometheus.update(
                metrics,
                RunCounters { validation_loss, validation_ema_loss, skipped_rows, ..counters },
            );
        }
        observer.on_step(metrics, total_steps);
    }

    fn report_log_problem(&mut self, problem: Option<Error>, observer: &mut dyn Observer) {
        match &problem {
            Some(problem) if !self.has_unwritten_metrics => observer.log(&format!(
                "metrics cannot be written: {problem}; training continues, and they are kept until there \
                 is room"
            )),
            None if self.has_unwritten_metrics => observer.log("all metrics are written again"),
            _ => (),
        }
        self.has_unwritten_metrics = problem.is_some();
    }

    /// Records a rollback from step `from` to step `to`, and removes the lines of the steps between from
    /// the metrics in the folder `output`. If that fails, they stay. `seconds` is the time since the
    /// checkpoint, if that is known.
    pub fn roll_back(
        &mut self,
        output: &Path,
        (from, to): (u64, u64),
        seconds: Option<f64>,
        observer: &mut dyn Observer,
    ) {
        let (Some(log), Some(events)) = (&mut self.log, &self.events) else { return };
        let lost = match log.flush().and_then(|()| MetricsLog::open(output, to)) {
            Ok((reopened, lost)) => {
                (*log, self.has_unwritten_metrics) = (reopened, false);
                lost
            }
            Err(problem) => {
                observer.log(&format!("the metrics of lost steps stay in the file: {problem}"));
                LostSteps::default()
            }
        };
        if let Err(problem) = events.record_rollback(from, to, seconds.unwrap_or(lost.seconds)) {
            report_event_problem(&problem, observer);
        }
    }

    /// Tries for the last time to write metrics that could not be written.
    pub fn finish(&mut self, observer: &mut dyn Observer) {
        if let Some(Err(problem)) = self.log.as_mut().map(MetricsLog::flush) {
            observer.log(&format!("the last metrics are lost: {problem}"));
        }
    }
}

fn report_event_problem(problem: &Error, observer: &mut dyn Observer) {
    observer.log(&format!("an event is missing in events.jsonl: {problem}"));
}

/// The metrics of a step. `samples` is the number of samples trained on so far, `checkpoint` the
/// last step with a committed checkpoint.
pub(crate) fn new_step_metrics(
    train: &TrainConfig,
    (pending, results): &FinishedStep,
    window: WindowMetrics,
    samples: u64,
    checkpoint: u64,
) -> StepMetrics {
    let WindowMetrics { throughput, communication } = window;
    StepMetrics {
        step: pending.step,
        phase: pending.phase,
        resolution: train.phase[pending.phase].resolution,
        samples,
        loss: results.loss,
        grad_norm: results.grad_norm,
        learning_rate: pending.learning_rate,
        images_per_second: throughput.images_per_second,
        tflops: throughput.tflops_per_rank,
        mfu: train.peak_tflops.map(|peak| throughput.tflops_per_rank / peak),
        data_wait: throughput.data_wait,
        communication,
        memory_mib: results.memory_mib.clone(),
        gpu_memory_mib: results.gpu_memory_mib.clone(),
        telemetry: results.telemetry.clone(),
        loss_by_timestep: results.loss_by_timestep.clone(),
        checkpoint,
        validation: pending.validation.clone(),
    }
}

/// Reports why this rank's part of a batch has fewer rows than it should; `step` is counted from 1.
pub(crate) fn report_unreadable_rows(
    phase: &Phase<'_>,
    step: u64,
    batch: &Batch,
    stream: &dyn BatchStream,
    observer: &mut dyn Observer,
) {
    let expected = phase.world.local_batch_size(phase.global_batch());
    let missing = expected.saturating_sub(batch.sample_ids.len());
    if missing > 0 {
        let reasons: Vec<String> = stream.unreadable_rows().into_keys().take(LISTED_REASONS).collect();
        let reasons = reasons.join("; ");
        observer.log(&format!("step {step} goes without {missing} rows that cannot be read: {reasons}"));
    }
}
