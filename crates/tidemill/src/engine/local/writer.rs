//! The end of an encode pipeline: writes each unit's rows, counts them, and commits the unit unless
//! too many rows of the source are unreadable.

use arrow::array::RecordBatch;
use crossbeam_channel::Receiver;
use tidemill_data::InputUnit;
use tidemill_store::RowCounts;

use crate::engine::local::backpressure::memory_budget::MemoryPermit;
use crate::engine::local::batcher::EncodeBatch;
use crate::engine::local::messages::UnitMessage;
use crate::engine::local::run_state::RunState;
use crate::engine::quarantine_limit::BadRows;
use crate::engine::sink::Attempt;
use crate::error::{Error, Result};

/// Writes one unit after the other, until the pipeline ends.
pub(crate) fn run_writer(
    state: &RunState<'_>,
    from: &Receiver<UnitMessage<EncodeBatch<MemoryPermit>>>,
) -> Result<()> {
    let meter = &state.meters.write;
    let mut current: Option<UnitInProgress> = None;
    for message in from {
        match message {
            UnitMessage::Begin(unit) => current = Some(UnitInProgress::begin(state, &unit)?),
            UnitMessage::Batch(EncodeBatch { rows, held }) => {
                let unit = current.as_mut().ok_or(Error::Thread("write"))?;
                meter.time(|| unit.write(&rows))?;
                meter.add_rows(rows.num_rows());
                state.progress.add(rows.num_rows() as u64);
                drop((rows, held));
            }
            UnitMessage::End => {
                let unit = current.take().ok_or(Error::Thread("write"))?;
                meter.time(|| unit.commit(state))?;
            }
        }
    }
    Ok(())
}

/// A unit that is being written.
struct UnitInProgress {
    attempt: Box<dyn Attempt>,
    counts: RowCounts,
    bad_rows: BadRows,
}

impl UnitInProgress {
    fn begin(state: &RunState<'_>, unit: &InputUnit) -> Result<Self> {
        let attempt = state.sink.begin_unit(unit)?;
        Ok(Self { attempt, counts: RowCounts::default(), bad_rows: BadRows::default() })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.counts.add(&RowCounts::from_batch(batch)?);
        self.bad_rows.add_batch(batch);
        self.attempt.write(batch)
    }

    fn commit(self, state: &RunState<'_>) -> Result<()> {
        state.lock_tally().add_unit(&self.counts, self.bad_rows)?;
        self.attempt.commit()?;
        state.lock_tally().committed_units += 1;
        Ok(())
    }
}
