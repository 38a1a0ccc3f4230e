//! What a run of an engine did.

use tidemill_store::RowCounts;

use crate::engine::local::backpressure::memory_budget::MemoryUsage;
use crate::engine::stage_utilization::StageUtilization;

/// The summary of a run.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// Rows of this run.
    pub counts: RowCounts,
    /// Units committed in this run.
    pub units: usize,
    /// Wall time in seconds.
    pub seconds: f64,
    /// What each stage did: read, prepare, encode, write. Empty if it is not known, as on Ray.
    pub utilization: Vec<StageUtilization>,
    /// The memory that the batches in flight took, if it is known.
    pub memory: Option<MemoryUsage>,
}
