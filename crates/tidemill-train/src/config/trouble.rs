//! What becomes of steps, and ranks, that are not as they should be.

use serde::{Deserialize, Serialize};

/// What becomes of a step whose loss or gradient is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotFinite {
    /// The run ends; its last checkpoint is intact.
    Stop,
    /// It leaves the weights as they are, and is reported. After ten in a row the run ends.
    Skip,
    /// The run goes back to its last checkpoint, and on with the batches that follow. If that does not help three times, it
    /// ends.
    Rollback,
}

/// `[train.spike]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpikeConfig {
    /// A loss is a spike if it is more than so many times the mean of those before it.
    pub factor: f64,
    /// So many of them.
    pub window: usize,
    /// What becomes of such a step.
    pub action: SpikeAction,
}

impl Default for SpikeConfig {
    fn default() -> Self {
        Self { factor: 3.0, window: 100, action: SpikeAction::Report }
    }
}

/// What becomes of a step whose loss is far above those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpikeAction {
    /// It is reported.
    Report,
    /// As with a loss that is not finite.
    Skip,
    /// As with a loss that is not finite.
    Rollback,
}

/// `[train.health]`: what is asked of several ranks before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// Whether they are timed at all.
    pub check: bool,
    /// A rank is named if it takes more than so many times the median of all.
    pub slower_than: f64,
    /// Whether training goes on without such a rank; `--workers` has to allow for fewer.
    pub exclude: bool,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { check: true, slower_than: 3.0, exclude: false }
    }
}
