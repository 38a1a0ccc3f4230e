//! `[train.validation]`: when the loss on the validation set is computed, and on which rows.

use serde::{Deserialize, Serialize};

/// `[train.validation]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValidationConfig {
    /// Steps between two validations.
    pub every: u64,
    /// The most rows in a validation.
    pub rows: u64,
    /// Path or URI of a dataset that is used for validation only. Unset: the rows that the run's
    /// datasets hold out.
    pub dataset: Option<String>,
}

impl Default for ValidationConfig {
    fn default() -> Self {
        Self { every: 1000, rows: 2048, dataset: None }
    }
}
