//! Callbacks of a training run.

use std::path::Path;

use crate::metrics::StepMetrics;

/// Follows a training run and may stop it. Each rank has its own observer.
pub trait Observer {
    /// Called with the metrics of each step, in order. `total_steps` is the number of steps of all
    /// phases.
    fn on_step(&mut self, metrics: &StepMetrics, total_steps: u64);

    /// Called with messages for the user: one line of text each.
    fn log(&mut self, message: &str);

    /// Whether the run should save a checkpoint and stop, for instance after SIGTERM or ctrl-c.
    fn should_stop(&self) -> bool;

    /// Called before the trainer starts something that may take long; `step` is the number of steps
    /// done.
    fn on_activity(&mut self, _step: u64, _activity: Activity) {}

    /// Called when the checkpoint of `step` is committed, or when the run resumes from it.
    fn on_checkpoint(&mut self, _step: u64) {}

    /// Called on the first rank when the previews of `step` are written, as one picture.
    fn on_preview(&mut self, _step: u64, _path: &Path) {}
}

/// Something that the trainer may be busy with for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Waiting for rows.
    WaitForData,
    /// Computing a step, or waiting for other ranks to start one.
    Step,
    /// Waiting until the last checkpoint is written.
    FinalCheckpoint,
}
