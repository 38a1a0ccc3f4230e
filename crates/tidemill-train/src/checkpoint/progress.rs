//! The progress of a run, which a checkpoint has besides weights and optimizer state.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_store::stream::SnapshotId;

/// The progress of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps taken, over all phases.
    pub step: u64,
    /// Samples trained on.
    pub samples: u64,
    /// The index of the phase that `stream` belongs to.
    pub phase: usize,
    /// The position of the data stream, from `BatchStream::state`; `None` before the first batch.
    pub stream: Option<Value>,
    /// Losses of the last steps.
    pub recent_losses: VecDeque<f64>,
    /// The run's identity: model, schedule, dataset, seed. A checkpoint of another run is refused.
    pub identity: Value,
    /// `[train]` of the run file, which may change from one start to the next.
    pub settings: Value,
    /// The dataset snapshots that validation rows come from.
    #[serde(default)]
    pub held_out: BTreeMap<String, SnapshotId>,
}

impl Progress {
    /// The start of a run.
    pub fn new(identity: Value, settings: Value) -> Self {
        Self {
            step: 0,
            samples: 0,
            phase: 0,
            stream: None,
            recent_losses: VecDeque::new(),
            identity,
            settings,
            held_out: BTreeMap::new(),
        }
    }
}
