//! `[checkpoint]`: when, where and by which ranks checkpoints are written.

use serde::{Deserialize, Serialize};

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Steps between two checkpoints. The last step is always saved.
    pub every: u64,
    /// The number of newest checkpoints to keep.
    pub keep: usize,
    /// In addition, the first checkpoint of every `keep_every` steps is kept for good.
    pub keep_every: Option<u64>,
    /// In addition, the checkpoints that evaluation found best are kept.
    pub keep_best: Option<KeepBestConfig>,
    /// The location of the checkpoints. Unset: `checkpoints/` under the run's output.
    pub uri: Option<String>,
    /// The ranks that write.
    pub writers: CheckpointWriters,
}

/// `checkpoint.keep_best`: the checkpoints with the best records of `tidemill eval`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepBestConfig {
    /// A number of the records, such as `fid` or `clip_score`.
    pub metric: String,
    /// The number of checkpoints to keep.
    pub count: usize,
    /// The folder or URI of the evaluations. Unset: `eval.uri`, or `evaluations/` under the run's
    /// output.
    #[serde(default)]
    pub uri: Option<String>,
}

/// `checkpoint.writers`: which ranks write checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointWriters {
    /// Each rank writes its own state.
    All,
    /// One rank of each node writes the state of all ranks of its node.
    Node,
    /// The first rank writes everything.
    First,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            every: 1000,
            keep: 3,
            keep_every: None,
            keep_best: None,
            uri: None,
            writers: CheckpointWriters::All,
        }
    }
}
