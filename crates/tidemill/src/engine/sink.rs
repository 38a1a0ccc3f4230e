//! What an engine fills: a [`Sink`] takes the rows of units and commits them.

use std::time::Duration;

use arrow::array::RecordBatch;
use tidemill_data::InputUnit;

use crate::engine::stage_utilization::Utilisation;
use crate::error::Result;

/// Where finished rows go.
pub trait Sink: Sync {
    /// Whether there is room for a unit, or will be within `patience`. Asked before anything of it is prepared: rows that are
    /// under way hold memory that others may need to make the room.
    fn has_room(&self, _unit: &InputUnit, _patience: Duration) -> bool {
        true
    }

    /// Starts a unit. Nothing of it counts until it is committed; an attempt that is dropped leaves no trace that a
    /// reader sees.
    ///
    /// # Errors
    /// If nothing can be written there.
    fn begin(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>>;

    /// Told at the end of a run, however it ends, what each stage did.
    fn ended(&self, _stages: &[Utilisation]) {}
}

/// One attempt at writing a unit.
pub trait Attempt {
    /// Adds rows, in the unit's order.
    ///
    /// # Errors
    /// If they cannot be written.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;

    /// Makes the unit part of the dataset, unless somebody else has done so meanwhile.
    ///
    /// # Errors
    /// If it cannot be committed.
    fn commit(self: Box<Self>) -> Result<()>;
}
