//! Watches the trainer's steps: shows progress, reports to the supervisor and to trackers, and stops
//! training after a signal.

use std::path::Path;

use tidemill_train::{Activity, Observer, StepMetrics, World};

use crate::engine::stop_signal::StopSignal;
use crate::progress::{Progress, Reporter, print_status};
use crate::supervisor::{Heartbeat, WorkerActivity, WorkerMessage};
use crate::tracking::Tracker;

/// Watches the trainer's steps.
pub struct StepObserver<'a> {
    pub progress: Progress,
    pub reporter: &'a Reporter,
    pub world: &'a World,
    pub heartbeat: &'a Heartbeat,
    pub signal: StopSignal,
    /// The trackers of `[track]`; on the first rank only.
    pub tracker: Option<Tracker>,
    /// See [`TrainHooks::on_metrics`](super::TrainHooks).
    pub on_metrics: Box<dyn FnMut(&StepMetrics) -> bool + Send + 'a>,
    /// See [`TrainHooks::should_stop`](super::TrainHooks).
    pub should_stop: Box<dyn Fn() -> bool + Send + 'a>,
    /// The last step that the progress shows. `None` before the first activity.
    pub shown_step: Option<u64>,
}

impl StepObserver<'_> {
    /// Hands something to the trackers, and reports what they have to say.
    fn track(&mut self, log: impl FnOnce(&mut Tracker)) {
        let Some(tracker) = &mut self.tracker else { return };
        log(tracker);
        for message in tracker.take_messages() {
            self.reporter.report_above(&self.progress, &message);
        }
    }
}

impl Observer for StepObserver<'_> {
    fn on_step(&mut self, metrics: &StepMetrics, _total: u64) {
        self.progress.note(format!(
            "loss {:.4}, {:.1} img/s, waiting for data {:.0}%",
            metrics.loss,
            metrics.images_per_second,
            100.0 * metrics.data_wait
        ));
        let shown = self.shown_step.unwrap_or(0);
        self.progress.add(metrics.step.saturating_sub(shown));
        self.shown_step = Some(shown.max(metrics.step));
        self.track(|tracker| tracker.log_step(metrics));
        if !(self.on_metrics)(metrics) {
            self.signal.raise();
        }
    }

    fn log(&mut self, message: &str) {
        match self.world.rank() {
            0 => self.reporter.report_above(&self.progress, message),
            rank => print_status(format_args!("rank {rank}: {message}")),
        }
    }

    fn should_stop(&self) -> bool {
        self.signal.is_raised() || (self.should_stop)()
    }

    fn on_activity(&mut self, step: u64, activity: Activity) {
        if self.shown_step.is_none() {
            // Steps of an earlier process are not part of the rate.
            self.progress.start_at(step);
            self.shown_step = Some(step);
        }
        let activity = match activity {
            Activity::WaitForData => WorkerActivity::Data,
            Activity::Step => WorkerActivity::Step,
            Activity::FinalCheckpoint => WorkerActivity::End,
        };
        self.heartbeat.set(step, activity);
    }

    fn on_checkpoint(&mut self, step: u64) {
        self.heartbeat.send(&WorkerMessage::Committed(step));
    }

    fn on_preview(&mut self, step: u64, path: &Path) {
        self.track(|tracker| tracker.log_preview(step, path));
    }
}
