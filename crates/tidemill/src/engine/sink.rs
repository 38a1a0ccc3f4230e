//! What an engine writes to: a [`Sink`] takes the rows of units and commits them.

use std::time::Duration;

use arrow::array::RecordBatch;
use tidemill_data::InputUnit;

use crate::engine::stage_utilization::StageUtilization;
use crate::error::Result;

/// The destination of finished rows.
pub trait Sink: Sync {
    /// Waits up to `timeout` for room for a unit, and returns whether there is room now. The
    /// engine asks before it prepares any row of the unit, because rows in flight hold memory
    /// that the units ahead of it may need.
    fn has_room(&self, _unit: &InputUnit, _timeout: Duration) -> bool {
        true
    }

    /// Starts an attempt at a unit. Nothing of it counts until it is committed; readers see no
    /// trace of an attempt that is dropped.
    ///
    /// # Errors
    /// If the sink cannot be written to.
    fn begin_unit(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>>;

    /// Receives what each stage did. Called once at the end of a run, also of a failed one.
    fn on_run_end(&self, _stages: &[StageUtilization]) {}
}

/// One try at writing a unit.
pub trait Attempt {
    /// Adds rows, in the unit's order.
    ///
    /// # Errors
    /// If they cannot be written.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;

    /// Makes the unit part of the dataset, unless another process has committed it meanwhile.
    ///
    /// # Errors
    /// If it cannot be committed.
    fn commit(self: Box<Self>) -> Result<()>;
}
