//! The bounds of the queues between the threads of an encode pipeline.

use crate::engine::local::batcher::max_rows;

/// Rows of a prepare task: few, so that all workers soon have some and rows wait little for those
/// before them.
pub(crate) const ROWS_PER_TASK: usize = 16;

/// Encode batches that may wait for an encoder.
pub(crate) const MAX_QUEUED_BATCHES: usize = 2;

/// Encoded batches that may wait to be written.
pub(crate) const MAX_QUEUED_WRITES: usize = 2;

/// Prepare tasks of a pipeline that may be in work or wait: enough to keep every worker busy while
/// the oldest rows are waited for, and while a batch is encoded.
pub(crate) fn max_pending_tasks(workers: usize, batch_size: usize) -> usize {
    2 * workers + 2 * max_rows(batch_size).div_ceil(ROWS_PER_TASK)
}

/// The most rows that may stay in a pipeline because its next encode batch is not full, plus rows
/// that can complete it. The working part of the memory must hold this many rows of each pipeline.
pub(crate) fn min_rows_in_flight(batch_size: usize) -> usize {
    max_rows(batch_size) + 2 * ROWS_PER_TASK
}
