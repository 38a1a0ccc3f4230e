//! Reading ahead: each reader takes the next unit and reads it to its end, as far as the unit's part of the memory
//! goes. Several readers hide the latency of a slow source.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender};
use tidemill_data::InputUnit;

use crate::engine::local::engine::{Shared, pass};
use crate::engine::local::memory_budget::{Permit, Share};
use crate::error::Result;

/// A unit to be read.
pub(crate) struct Opened {
    pub unit: InputUnit,
    /// Its part of the memory.
    pub share: Arc<Share>,
    pub to: Sender<Read>,
}

/// What comes of reading a unit. Without the end it was not read completely.
pub(crate) enum Read {
    Batch(RecordBatch, Permit),
    End,
}

/// A reader: reads one unit after the other.
pub(crate) fn read(shared: &Shared<'_>, units: &Receiver<Opened>) -> Result<()> {
    for opened in units {
        // If its lane has ended, so have the others, or they are about to.
        let _ = read_unit(shared, &opened)?;
    }
    Ok(())
}

fn read_unit(shared: &Shared<'_>, opened: &Opened) -> Result<ControlFlow<()>> {
    let Opened { unit, share, to } = opened;
    let Some(_held) = shared.budget.reader(unit.held) else { return Ok(ControlFlow::Break(())) };
    let room = shared.budget.plan().room;
    let mut batches = shared.read.time(|| shared.source.read_within(unit, room))?;
    let mut largest = 0;
    // The next batch will hardly be larger than those before.
    while let Some(permit) = share.take(largest) {
        let Some(batch) = shared.read.time(|| batches.next()) else { return Ok(pass(to, Read::End)) };
        let batch = batch?;
        let bytes = batch.get_array_memory_size() as u64;
        largest = largest.max(bytes);
        shared.read.count(batch.num_rows());
        let Some(permit) = permit.resize(bytes) else { break };
        if pass(to, Read::Batch(batch, permit)).is_break() {
            break;
        }
    }
    Ok(ControlFlow::Break(()))
}
