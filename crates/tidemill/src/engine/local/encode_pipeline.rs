//! A lane takes one unit at a time through one encoder. One thread feeds the pool of workers, one takes their results
//! in order and cuts encode batches, one encodes, one writes and commits. While a batch is encoded the next ones are
//! prepared and cut, so the device does not wait.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Scope;
use std::time::Duration;

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, bounded};
use tidemill_data::InputUnit;

use crate::engine::local::batcher::{Cut, Cutter, most_rows};
use crate::engine::local::engine::{Shared, Thread, pass};
use crate::engine::local::memory_budget::Permit;
use crate::engine::local::reader::Read;
use crate::engine::local::worker_pool::Job;
use crate::engine::local::writer::write;
use crate::engine::retry_in_halves::Guarded;
use crate::engine::stage::Stage;
use crate::error::{Error, Result};

/// Rows that a worker prepares at a time: few, so that all workers have some soon and order is soon restored.
pub(crate) const ROWS_PER_JOB: usize = 16;

/// Encode batches that may wait for the encoder.
pub(crate) const CUTS_AHEAD: usize = 2;

/// Encoded batches that may wait to be written.
const WRITES_AHEAD: usize = 2;

/// How long a lane waits for room in the sink before it looks whether the run goes on.
const PATIENCE: Duration = Duration::from_millis(100);

/// A unit and what is read of it.
pub(crate) struct Line {
    pub unit: InputUnit,
    pub batches: Receiver<Read>,
}

/// What flows through a lane: each unit's batches between its beginning and its end.
pub(crate) enum Step<T> {
    Begin(InputUnit),
    Batch(T),
    End,
}

/// Some rows at the pool. They are waited for in the order in which they were read, whichever worker is done first.
struct Pending {
    result: Receiver<Result<RecordBatch>>,
    permit: Permit,
}

/// The most rows of work that lie still in a lane because its next encode batch is not full, and some that can
/// complete it.
pub(crate) fn least_rows(batch_size: usize) -> usize {
    most_rows(batch_size) + 2 * ROWS_PER_JOB
}

/// Starts the lane's four threads.
pub(crate) fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    shared: &'scope Shared<'_>,
    stage: Box<dyn Stage + 'env>,
    lines: Receiver<Line>,
    jobs: Sender<Job>,
    workers: usize,
) -> [Thread<'scope>; 4] {
    // Enough to keep every worker busy while the oldest rows are waited for, and while a batch is encoded.
    let ahead = 2 * workers + 2 * most_rows(shared.batch_size).div_ceil(ROWS_PER_JOB);
    let (fed, to_cut) = bounded(ahead);
    let (full, to_encode) = bounded(CUTS_AHEAD);
    let (encoded, to_write) = bounded(WRITES_AHEAD);
    [
        crate::engine::local::engine::spawn(scope, "feed", shared, move || feed(shared, &lines, &jobs, &fed)),
        crate::engine::local::engine::spawn(scope, "cut", shared, move || cut(shared, &to_cut, &full)),
        crate::engine::local::engine::spawn(scope, "encode", shared, move || {
            encode(shared, &*stage, &to_encode, &encoded)
        }),
        crate::engine::local::engine::spawn(scope, "write", shared, move || write(shared, &to_write)),
    ]
}

fn feed(
    shared: &Shared<'_>,
    lines: &Receiver<Line>,
    jobs: &Sender<Job>,
    to: &Sender<Step<Pending>>,
) -> Result<()> {
    for line in lines {
        while !shared.stopping() && !shared.sink.has_room(&line.unit, PATIENCE) {}
        if shared.stopping() || feed_unit(shared, line, jobs, to).is_break() {
            break;
        }
    }
    Ok(())
}

fn feed_unit(
    shared: &Shared<'_>,
    line: Line,
    jobs: &Sender<Job>,
    to: &Sender<Step<Pending>>,
) -> ControlFlow<()> {
    pass(to, Step::Begin(line.unit))?;
    for read in line.batches {
        match read {
            Read::Batch(batch, permit) => feed_batch(shared, &batch, permit, jobs, to)?,
            Read::End => return pass(to, Step::End),
        }
    }
    // The reader has failed; the unit is not complete.
    ControlFlow::Break(())
}

fn feed_batch(
    shared: &Shared<'_>,
    batch: &RecordBatch,
    read: Permit,
    jobs: &Sender<Job>,
    to: &Sender<Step<Pending>>,
) -> ControlFlow<()> {
    let read = Arc::new(read);
    for start in (0..batch.num_rows()).step_by(ROWS_PER_JOB) {
        let rows = batch.slice(start, ROWS_PER_JOB.min(batch.num_rows() - start));
        let permit = shared.budget.working().take(shared.work_of(&rows));
        let (Some(permit), false) = (permit, shared.failed()) else { return ControlFlow::Break(()) };
        let (done, result) = bounded(1);
        pass(jobs, Job { rows, read: read.clone(), result: done })?;
        pass(to, Step::Batch(Pending { result, permit }))?;
    }
    ControlFlow::Continue(())
}

fn cut(shared: &Shared<'_>, from: &Receiver<Step<Pending>>, to: &Sender<Step<Cut<Permit>>>) -> Result<()> {
    let mut cutter = Cutter::new(shared.batch_size);
    for step in from {
        let (cuts, last) = match step {
            Step::Begin(unit) => (Vec::new(), Some(Step::Begin(unit))),
            Step::Batch(Pending { result, permit }) => {
                let prepared = result.recv().map_err(|_| Error::Thread("prepare"))??;
                (cutter.push(prepared, permit)?, None)
            }
            Step::End => (cutter.flush()?.into_iter().collect(), Some(Step::End)),
        };
        for step in cuts.into_iter().map(Step::Batch).chain(last) {
            shared.queued.fetch_add(usize::from(matches!(step, Step::Batch(_))), Ordering::Relaxed);
            if pass(to, step).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn encode(
    shared: &Shared<'_>,
    stage: &dyn Stage,
    from: &Receiver<Step<Cut<Permit>>>,
    to: &Sender<Step<Cut<Permit>>>,
) -> Result<()> {
    stage.enter();
    let stage = Guarded::encode(stage, &shared.encode);
    for step in from {
        let step = match step {
            Step::Batch(Cut { batch, held }) => {
                shared.queued.fetch_sub(1, Ordering::Relaxed);
                let encoded = shared.encode.time(|| stage.run(&batch))?;
                shared.encode.count(batch.num_rows());
                Step::Batch(Cut { batch: encoded, held })
            }
            step => step,
        };
        if pass(to, step).is_break() {
            break;
        }
    }
    Ok(())
}
