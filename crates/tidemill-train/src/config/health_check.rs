//! `[train.health]`: the check of all ranks before the first step.

use serde::{Deserialize, Serialize};

/// `[train.health]`: whether and how ranks are compared with each other before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthCheckConfig {
    /// Whether the ranks are checked at all.
    pub check: bool,
    /// A rank is reported if it takes more than this many times the median of all ranks.
    pub slower_than: f64,
    /// Whether training continues without such a rank. `--workers` has to allow for fewer workers.
    pub exclude: bool,
}

impl Default for HealthCheckConfig {
    fn default() -> Self {
        Self { check: true, slower_than: 3.0, exclude: false }
    }
}
