//! What the threads of the local engine send each other.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender};
use tidemill_data::InputUnit;

use crate::engine::local::backpressure::memory_budget::{ByteSemaphore, MemoryPermit};
use crate::error::Result;

/// A unit for a reader.
pub(crate) struct UnitToRead {
    pub unit: InputUnit,
    /// The unit's share of the memory.
    pub share: Arc<ByteSemaphore>,
    pub batches: Sender<ReadMessage>,
}

/// A unit whose batches an encode pipeline gets.
pub(crate) struct UnitToFeed {
    pub unit: InputUnit,
    pub batches: Receiver<ReadMessage>,
}

/// What a reader sends. If the channel closes without [`End`](Self::End), the unit is incomplete.
pub(crate) enum ReadMessage {
    Batch(RecordBatch, MemoryPermit),
    End,
}

/// A few rows for a prepare worker.
pub(crate) struct PrepareTask {
    pub rows: RecordBatch,
    /// The permit of the batch that the rows are a slice of, shared by all its slices.
    pub read_permit: Arc<MemoryPermit>,
    pub result: Sender<Result<RecordBatch>>,
}

/// Rows that a prepare worker has. The pipeline waits for results in the order in which the rows
/// were read, whichever worker finishes first.
pub(crate) struct PendingRows {
    pub result: Receiver<Result<RecordBatch>>,
    pub permit: MemoryPermit,
}

/// What flows through an encode pipeline: the batches of one unit at a time.
pub(crate) enum UnitMessage<T> {
    Begin(InputUnit),
    Batch(T),
    End,
}

/// Sends a message. Breaks if the receiving thread has ended.
pub(crate) fn send<T>(to: &Sender<T>, message: T) -> ControlFlow<()> {
    to.send(message).map_or(ControlFlow::Break(()), |()| ControlFlow::Continue(()))
}
