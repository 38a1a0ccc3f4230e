//! The position of all ranks in the windows, as a checkpoint stores it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::online::rank_assignment::{RankAssignment, redistribute};

/// The position of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamState {
    /// The resolution in pixels. At another resolution, a window may have other rows.
    pub resolution: u32,
    /// What each rank has left.
    #[serde(rename = "lanes")]
    pub assignments: Vec<RankAssignment>,
}

impl StreamState {
    /// Reads what [`BatchStream::state`](tidemill_train::BatchStream::state) returned.
    ///
    /// # Errors
    /// If the value is not such a state.
    pub fn from_json(value: &Value) -> Result<Self> {
        let state: Self = serde_json::from_value(value.clone())
            .map_err(|e| Error::Refused(format!("cannot read the checkpoint's position in the data: {e}")))?;
        if state.assignments.is_empty() {
            return Err(Error::Refused("the checkpoint's position in the data has no rank".into()));
        }
        Ok(state)
    }

    /// What each of this many ranks has left, at this resolution. If the resolution changes,
    /// windows that were started are given up, because they may have other rows now.
    pub fn into_assignments(mut self, resolution: u32, ranks: usize) -> Vec<RankAssignment> {
        if self.resolution != resolution {
            self.assignments.iter_mut().for_each(RankAssignment::abandon_started_windows);
        }
        redistribute(&self.assignments, ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::online::rank_assignment::initial_assignments;

    #[test]
    fn another_resolution_abandons_started_windows() {
        let mut assignments = initial_assignments(2);
        assignments[0].set_rows_taken(3, 2);
        for ranks in [1, 2] {
            for (resolution, expected) in [(64, 1), (32, 0)] {
                let state = StreamState { resolution: 64, assignments: assignments.clone() };
                let resumed = state.into_assignments(resolution, ranks);
                let next = resumed.iter().flat_map(|assignment| assignment.remaining_windows(ranks).take(4));
                let started = next.filter(|position| position.rows_taken > 0).count();
                assert_eq!(started, expected, "{resolution} on {ranks}");
            }
        }
    }
}
