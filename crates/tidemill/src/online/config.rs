//! `[online]`: training on pairs without a dataset.

use serde::{Deserialize, Serialize};

/// `[online]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnlineConfig {
    /// Units (`source.rows_per_unit` rows each) whose rows are shuffled together. Each training
    /// process keeps three times as many units in memory, encoded, and needs this many before its
    /// first step.
    pub window: usize,
    /// On Ray: windows that each training process requests from the encoders at a time, besides
    /// those that it holds.
    pub ahead: usize,
}

impl Default for OnlineConfig {
    fn default() -> Self {
        Self { window: 4, ahead: 2 }
    }
}
