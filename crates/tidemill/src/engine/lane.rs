//! A lane takes one unit at a time through one device: a thread that reads, one that encodes, one that writes and
//! commits. While a unit is encoded the next one is already read and prepared, so the device does not wait.

use std::ops::ControlFlow;
use std::thread::Scope;

use arrow::array::{Array, AsArray, RecordBatch};
use crossbeam_channel::{Receiver, Sender, bounded};
use tidemill_data::counts::QUARANTINED;
use tidemill_data::{Counts, InputUnit};

use super::cut::Cutter;
use super::local::{self, Job, Shared, Thread, pass};
use super::{Attempt, Stage};
use crate::error::{Error, Result};

/// Rows that a worker prepares at a time: few, so that all workers have some soon and order is soon restored.
const ROWS_PER_JOB: usize = 16;

/// Encoded batches that may wait to be written.
const WRITES_AHEAD: usize = 2;

/// What flows through a lane: each unit's batches between its beginning and its end.
enum Step<T> {
    Begin(InputUnit),
    Batch(T),
    End,
}

/// Starts the lane's three threads.
pub(super) fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    shared: &'scope Shared<'_>,
    stage: Box<dyn Stage>,
    units: Receiver<InputUnit>,
    jobs: Sender<Job>,
    ahead: usize,
) -> [Thread<'scope>; 3] {
    let (prepared, to_encode) = bounded(ahead);
    let (encoded, to_write) = bounded(WRITES_AHEAD);
    [
        local::spawn(scope, "read", shared, move || read(shared, &units, &jobs, &prepared)),
        local::spawn(scope, "encode", shared, move || encode(shared, &*stage, &to_encode, &encoded)),
        local::spawn(scope, "write", shared, move || write(shared, &to_write)),
    ]
}

/// Results in the order in which their rows were read, whichever worker is done first.
type Pending = Receiver<Result<RecordBatch>>;

fn read(
    shared: &Shared<'_>,
    units: &Receiver<InputUnit>,
    jobs: &Sender<Job>,
    to: &Sender<Step<Pending>>,
) -> Result<()> {
    for unit in units {
        if shared.signal.raised() || shared.failed() || read_unit(shared, unit, jobs, to)?.is_break() {
            break;
        }
    }
    Ok(())
}

fn read_unit(
    shared: &Shared<'_>,
    unit: InputUnit,
    jobs: &Sender<Job>,
    to: &Sender<Step<Pending>>,
) -> Result<ControlFlow<()>> {
    let mut batches = shared.read.time(|| shared.source.read(&unit))?;
    if pass(to, Step::Begin(unit)).is_break() {
        return Ok(ControlFlow::Break(()));
    }
    while let Some(batch) = shared.read.time(|| batches.next()) {
        let batch = batch?;
        for start in (0..batch.num_rows()).step_by(ROWS_PER_JOB) {
            let batch = batch.slice(start, ROWS_PER_JOB.min(batch.num_rows() - start));
            let (result, pending) = bounded(1);
            if shared.failed()
                || pass(jobs, Job { batch, result }).is_break()
                || pass(to, Step::Batch(pending)).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(pass(to, Step::End))
}

fn encode(
    shared: &Shared<'_>,
    stage: &dyn Stage,
    from: &Receiver<Step<Pending>>,
    to: &Sender<Step<RecordBatch>>,
) -> Result<()> {
    stage.enter();
    let mut cutter = Cutter::new(shared.batch_size);
    for step in from {
        let (batches, end) = match step {
            Step::Begin(unit) => {
                if pass(to, Step::Begin(unit)).is_break() {
                    return Ok(());
                }
                continue;
            }
            Step::Batch(pending) => {
                let prepared = pending.recv().map_err(|_| Error::Thread("prepare"))??;
                (cutter.push(prepared)?, false)
            }
            Step::End => (cutter.flush()?.into_iter().collect(), true),
        };
        for batch in batches {
            let encoded = shared.encode.time(|| stage.run(&batch))?;
            if pass(to, Step::Batch(encoded)).is_break() {
                return Ok(());
            }
        }
        if end && pass(to, Step::End).is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn write(shared: &Shared<'_>, from: &Receiver<Step<RecordBatch>>) -> Result<()> {
    let mut current: Option<Written> = None;
    for step in from {
        match step {
            Step::Begin(unit) => current = Some(Written::begin(shared, &unit)?),
            Step::Batch(batch) => {
                let unit = current.as_mut().ok_or(Error::Thread("write"))?;
                shared.write.time(|| unit.add(&batch))?;
                note(shared, batch.num_rows() as u64);
            }
            Step::End => {
                let unit = current.take().ok_or(Error::Thread("write"))?;
                shared.write.time(|| unit.commit(shared))?;
            }
        }
    }
    Ok(())
}

fn note(shared: &Shared<'_>, rows: u64) {
    let stages = shared.utilisation();
    shared.progress.note(stages.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    shared.progress.add(rows);
}

/// A unit while it is written.
struct Written {
    attempt: Box<dyn Attempt>,
    counts: Counts,
    /// Key and reason of the last quarantined row.
    last_bad: String,
}

impl Written {
    fn begin(shared: &Shared<'_>, unit: &InputUnit) -> Result<Self> {
        Ok(Self { attempt: shared.sink.begin(unit)?, counts: Counts::default(), last_bad: String::new() })
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        self.counts.add(&Counts::of(batch)?);
        if let Some(last) = last_bad(batch) {
            self.last_bad = last;
        }
        self.attempt.write(batch)
    }

    /// Commits the unit, unless the source turns out to be too bad to go on with.
    fn commit(self, shared: &Shared<'_>) -> Result<()> {
        let total = shared.tally()?.with(&self.counts);
        let (quarantined, read) = (total.total_quarantined(), total.read);
        if quarantined as f64 > shared.max_bad_fraction * read as f64 {
            return Err(Error::TooManyBad {
                quarantined,
                read,
                allowed: shared.max_bad_fraction,
                last: self.last_bad,
            });
        }
        self.attempt.commit()?;
        let mut tally = shared.tally()?;
        tally.counts.add(&self.counts);
        tally.units += 1;
        Ok(())
    }
}

fn last_bad(batch: &RecordBatch) -> Option<String> {
    let text = |name| batch.column_by_name(name)?.as_string_opt::<i32>();
    let (key, status, reason) = (text("key")?, text("status")?, text("reason")?);
    let row = (0..batch.num_rows()).rfind(|&row| status.value(row) == QUARANTINED)?;
    Some(format!(
        "{}: {}",
        key.value(row),
        if reason.is_valid(row) { reason.value(row) } else { "no reason given" }
    ))
}
