//! `train.not_finite` and `[train.spike]`: what a run does about steps whose loss or gradient is
//! not as it should be.

use serde::{Deserialize, Serialize};

/// `train.not_finite`: what the run does about a step whose loss or gradient is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFiniteAction {
    /// The run ends. Its last checkpoint is intact.
    Stop,
    /// The step leaves the weights as they are and is reported. After ten such steps in a row the
    /// run ends.
    Skip,
    /// The run rolls back to its last checkpoint and continues with the batches that follow. If
    /// three rollbacks in a row bring no progress, it ends.
    Rollback,
}

/// `[train.spike]`: how a loss spike is detected, and what the run does about it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpikeConfig {
    /// A loss is a spike if it is more than this many times the mean of the losses before it.
    pub factor: f64,
    /// The number of losses in that mean.
    pub window: usize,
    /// What the run does about the step.
    pub action: SpikeAction,
}

impl Default for SpikeConfig {
    fn default() -> Self {
        Self { factor: 3.0, window: 100, action: SpikeAction::Report }
    }
}

/// `train.spike.action`: what the run does about a step whose loss is far above those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpikeAction {
    /// The step counts, and is reported.
    Report,
    /// Same as [`NonFiniteAction::Skip`].
    Skip,
    /// Same as [`NonFiniteAction::Rollback`].
    Rollback,
}
