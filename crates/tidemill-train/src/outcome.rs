//! How a training run ended.

/// How a training run ended.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TrainOutcome {
    /// Steps done, including those before a resume.
    pub steps: u64,
    /// Whether all steps of all phases are done.
    pub finished: bool,
    /// Mean loss of the last steps.
    pub loss: Option<f64>,
    /// Images per second over this process's steps.
    pub images_per_second: f64,
    /// Wall-clock seconds of this process's steps.
    pub seconds: f64,
    /// The step from which this process resumed; 0 for a new run.
    pub resumed_at: u64,
    /// Rows that are missing in this process's steps because they could not be read.
    pub skipped_rows: u64,
    /// Steps of this process that left the weights unchanged because the loss or the gradient was
    /// abnormal.
    pub skipped_steps: u64,
    /// Times that this process rolled back to a checkpoint because the loss or the gradient was
    /// abnormal.
    pub rollbacks: u64,
    /// Seconds that steps waited for checkpoints.
    pub checkpoint_seconds: f64,
}
