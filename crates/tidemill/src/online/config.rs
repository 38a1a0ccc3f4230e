//! `[online]`: training on pairs as they come.

use serde::{Deserialize, Serialize};

/// `[online]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnlineConfig {
    /// Units (`source.rows_per_unit` each) whose rows are shuffled together. Of every training process, three times as many
    /// are in memory, encoded; and so many have to be made before the first step.
    pub window: usize,
    /// On Ray: windows that each training process asks the encoders for at a time, beside those that it holds.
    pub ahead: usize,
}

impl Default for OnlineConfig {
    fn default() -> Self {
        Self { window: 4, ahead: 2 }
    }
}
