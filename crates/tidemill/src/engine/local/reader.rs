//! Reader threads. Each takes the next unit and reads it to its end, as far ahead as the unit's
//! share of the memory allows. Several readers hide the latency of a slow source.

use std::ops::ControlFlow;

use crossbeam_channel::Receiver;

use crate::engine::local::messages::{ReadMessage, UnitToRead, send};
use crate::engine::local::run_state::RunState;
use crate::error::Result;

/// Reads one unit after the other, until there are no more.
pub(crate) fn run_reader(state: &RunState<'_>, units: &Receiver<UnitToRead>) -> Result<()> {
    for unit in units {
        // A break means that the unit's pipeline has ended. Then the run is stopping, and the other
        // pipelines end too.
        let _ = read_unit(state, &unit)?;
    }
    Ok(())
}

fn read_unit(state: &RunState<'_>, to_read: &UnitToRead) -> Result<ControlFlow<()>> {
    let UnitToRead { unit, share, batches: to } = to_read;
    let Some(_permit) = state.memory.acquire_reader_share(unit.resident_bytes) else {
        return Ok(ControlFlow::Break(()));
    };
    let meter = &state.meters.read;
    let batch_bytes = state.memory.plan().read_batch_bytes;
    let mut batches = meter.time(|| state.source.read_with_memory(unit, batch_bytes))?;
    // The next batch is assumed to be no larger than the largest before it.
    let mut largest = 0;
    while let Some(permit) = share.acquire(largest) {
        let Some(batch) = meter.time(|| batches.next()) else { return Ok(send(to, ReadMessage::End)) };
        let batch = batch?;
        let bytes = batch.get_array_memory_size() as u64;
        largest = largest.max(bytes);
        meter.add_rows(batch.num_rows());
        let Some(permit) = permit.resize(bytes) else { break };
        if send(to, ReadMessage::Batch(batch, permit)).is_break() {
            break;
        }
    }
    Ok(ControlFlow::Break(()))
}
