//! An encode pipeline takes one unit at a time through one encoder. One thread feeds the pool of
//! prepare workers, one takes their results in order and groups them into encode batches, one
//! encodes, and one writes and commits. While a batch is encoded, the next ones are prepared, so
//! the device does not wait.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Scope;
use std::time::Duration;

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::local::backpressure::memory_budget::MemoryPermit;
use crate::engine::local::backpressure::queue_limits::{
    MAX_QUEUED_BATCHES, MAX_QUEUED_WRITES, ROWS_PER_TASK, max_pending_tasks,
};
use crate::engine::local::batcher::{Batcher, EncodeBatch};
use crate::engine::local::messages::{PendingRows, PrepareTask, ReadMessage, UnitMessage, UnitToFeed, send};
use crate::engine::local::run_state::RunState;
use crate::engine::local::threads::{RunThread, spawn_thread};
use crate::engine::local::writer::run_writer;
use crate::engine::retry_in_halves::RetryingStage;
use crate::engine::stage::Stage;
use crate::error::{Error, Result};

/// How long a pipeline waits for room in the sink before it checks whether the run is stopping.
const ROOM_TIMEOUT: Duration = Duration::from_millis(100);

/// Starts the four threads of a pipeline around the encoder `stage`.
pub(crate) fn spawn_pipeline<'scope>(
    scope: &'scope Scope<'scope, '_>,
    state: &'scope RunState<'_>,
    stage: Box<dyn Stage + 'scope>,
    units: Receiver<UnitToFeed>,
    tasks: Sender<PrepareTask>,
    workers: usize,
) -> [RunThread<'scope>; 4] {
    let (fed, to_batch) = bounded(max_pending_tasks(workers, state.batch_size));
    let (batched, to_encode) = bounded(MAX_QUEUED_BATCHES);
    let (encoded, to_write) = bounded(MAX_QUEUED_WRITES);
    [
        spawn_thread(scope, "feed", state, move || run_feeder(state, &units, &tasks, &fed)),
        spawn_thread(scope, "batch", state, move || run_batcher(state, &to_batch, &batched)),
        spawn_thread(scope, "encode", state, move || run_encoder(state, &*stage, &to_encode, &encoded)),
        spawn_thread(scope, "write", state, move || run_writer(state, &to_write)),
    ]
}

/// Feeds the prepare workers with one unit after the other. Waits for room in the sink before each.
fn run_feeder(
    state: &RunState<'_>,
    units: &Receiver<UnitToFeed>,
    tasks: &Sender<PrepareTask>,
    to: &Sender<UnitMessage<PendingRows>>,
) -> Result<()> {
    for unit in units {
        while !state.stop.is_stopping() && !state.sink.has_room(&unit.unit, ROOM_TIMEOUT) {}
        if state.stop.is_stopping() || feed_unit(state, unit, tasks, to).is_break() {
            break;
        }
    }
    Ok(())
}

fn feed_unit(
    state: &RunState<'_>,
    unit: UnitToFeed,
    tasks: &Sender<PrepareTask>,
    to: &Sender<UnitMessage<PendingRows>>,
) -> ControlFlow<()> {
    send(to, UnitMessage::Begin(unit.unit))?;
    for message in unit.batches {
        match message {
            ReadMessage::Batch(batch, permit) => feed_batch(state, &batch, permit, tasks, to)?,
            ReadMessage::End => return send(to, UnitMessage::End),
        }
    }
    // The reader has failed, so the unit is incomplete.
    ControlFlow::Break(())
}

fn feed_batch(
    state: &RunState<'_>,
    batch: &RecordBatch,
    read_permit: MemoryPermit,
    tasks: &Sender<PrepareTask>,
    to: &Sender<UnitMessage<PendingRows>>,
) -> ControlFlow<()> {
    let read_permit = Arc::new(read_permit);
    for start in (0..batch.num_rows()).step_by(ROWS_PER_TASK) {
        let rows = batch.slice(start, ROWS_PER_TASK.min(batch.num_rows() - start));
        let permit = state.memory.working().acquire(state.work_bytes(&rows));
        let (Some(permit), false) = (permit, state.stop.has_failed()) else {
            return ControlFlow::Break(());
        };
        let (done, result) = bounded(1);
        send(tasks, PrepareTask { rows, read_permit: read_permit.clone(), result: done })?;
        send(to, UnitMessage::Batch(PendingRows { result, permit }))?;
    }
    ControlFlow::Continue(())
}

/// Takes prepared rows in the order in which they were read, and groups them into encode batches.
fn run_batcher(
    state: &RunState<'_>,
    from: &Receiver<UnitMessage<PendingRows>>,
    to: &Sender<UnitMessage<EncodeBatch<MemoryPermit>>>,
) -> Result<()> {
    let mut batcher = Batcher::new(state.batch_size);
    for message in from {
        let (batches, last) = match message {
            UnitMessage::Begin(unit) => (Vec::new(), Some(UnitMessage::Begin(unit))),
            UnitMessage::Batch(PendingRows { result, permit }) => {
                let prepared = result.recv().map_err(|_| Error::Thread("prepare"))??;
                (batcher.push(prepared, permit)?, None)
            }
            UnitMessage::End => (batcher.flush()?.into_iter().collect(), Some(UnitMessage::End)),
        };
        for message in batches.into_iter().map(UnitMessage::Batch).chain(last) {
            let is_batch = usize::from(matches!(message, UnitMessage::Batch(_)));
            state.encode_queue.waiting.fetch_add(is_batch, Ordering::Relaxed);
            if send(to, message).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn run_encoder(
    state: &RunState<'_>,
    stage: &dyn Stage,
    from: &Receiver<UnitMessage<EncodeBatch<MemoryPermit>>>,
    to: &Sender<UnitMessage<EncodeBatch<MemoryPermit>>>,
) -> Result<()> {
    stage.init_thread();
    let meter = &state.meters.encode;
    let stage = RetryingStage::encode(stage, meter);
    for message in from {
        let message = match message {
            UnitMessage::Batch(EncodeBatch { rows, held }) => {
                state.encode_queue.waiting.fetch_sub(1, Ordering::Relaxed);
                let encoded = meter.time(|| stage.run(&rows))?;
                meter.add_rows(rows.num_rows());
                UnitMessage::Batch(EncodeBatch { rows: encoded, held })
            }
            message => message,
        };
        if send(to, message).is_break() {
            break;
        }
    }
    Ok(())
}
