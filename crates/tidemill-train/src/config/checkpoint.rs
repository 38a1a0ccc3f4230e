//! `[checkpoint]`: when, where and by whom checkpoints are written.

use serde::{Deserialize, Serialize};

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Steps between two checkpoints; the last step is always saved.
    pub every: u64,
    /// How many to keep.
    pub keep: usize,
    /// Besides, the first of every so many steps is kept for good.
    pub keep_every: Option<u64>,
    /// Where they go; unset: `checkpoints/` under the run's output.
    pub uri: Option<String>,
    /// Which of several ranks write them.
    pub writers: Writers,
}

/// Which of several ranks write checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writers {
    /// Each its own part.
    All,
    /// One of each node, the parts of its node.
    Node,
    /// The first, everything.
    First,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every: 1000, keep: 3, keep_every: None, uri: None, writers: Writers::All }
    }
}
