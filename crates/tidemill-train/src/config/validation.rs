//! When the loss on held-out rows is taken.

use serde::{Deserialize, Serialize};

/// `[train.validation]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValidationConfig {
    /// Steps between two times.
    pub every: u64,
    /// Rows, at most.
    pub rows: u64,
    /// Path or URI of a dataset that is there for nothing else; unset: what the run's datasets hold out.
    pub dataset: Option<String>,
}

impl Default for ValidationConfig {
    fn default() -> Self {
        Self { every: 1000, rows: 2048, dataset: None }
    }
}
