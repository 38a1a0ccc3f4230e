//! The engine for one machine. A pool of workers prepares small batches on all cores; each device has a lane of its
//! own (read, encode, write). All queues are bounded, so memory does not grow with the dataset, and a slow stage slows
//! those before it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Instant;

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rayon::ThreadPoolBuilder;
use tidemill_data::source::Source;
use tidemill_data::{Counts, InputUnit, Prepare};

use super::lane;
use super::meter::{Meter, Utilisation};
use super::signal::StopSignal;
use super::{Sink, Stage};
use crate::error::{Error, Result};
use crate::reporter::Progress;

/// What to run and with how much of the machine.
pub struct Local<'a> {
    /// Reads the units.
    pub source: &'a dyn Source,
    /// The CPU stage.
    pub prepare: &'a Prepare,
    /// The second stage, once per device.
    pub encode: Vec<Box<dyn Stage>>,
    /// Takes the rows.
    pub sink: &'a dyn Sink,
    /// Kept rows in one encode batch.
    pub batch_size: usize,
    /// Threads that prepare.
    pub workers: usize,
    /// Greatest share of unreadable rows.
    pub max_bad_fraction: f64,
    /// Rows of units committed before this run; they count towards `max_bad_fraction`.
    pub before: Counts,
}

/// What a run did.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Rows of this run.
    pub counts: Counts,
    /// Units committed in this run.
    pub units: usize,
    /// Wall time.
    pub seconds: f64,
    /// How busy each stage was.
    pub utilisation: Vec<Utilisation>,
}

/// One small batch on its way through the pool, and where its result is waited for.
pub(super) struct Job {
    pub batch: RecordBatch,
    pub result: Sender<Result<RecordBatch>>,
}

/// What all threads of a run share.
pub(super) struct Shared<'a> {
    pub source: &'a dyn Source,
    pub sink: &'a dyn Sink,
    pub progress: &'a Progress,
    pub batch_size: usize,
    pub read: Meter,
    pub prepare: Meter,
    pub encode: Meter,
    pub write: Meter,
    tally: Mutex<Tally>,
    pub max_bad_fraction: f64,
    pub signal: StopSignal,
    start: Instant,
    failed: AtomicBool,
    first_error: Mutex<Option<Error>>,
}

/// Rows and units so far.
#[derive(Default)]
pub(super) struct Tally {
    pub before: Counts,
    pub counts: Counts,
    pub units: usize,
}

impl Tally {
    /// All rows of the dataset so far and some more.
    pub fn with(&self, more: &Counts) -> Counts {
        let mut total = self.before.clone();
        total.add(&self.counts);
        total.add(more);
        total
    }
}

impl Shared<'_> {
    pub fn tally(&self) -> Result<MutexGuard<'_, Tally>> {
        self.tally.lock().map_err(|_| Error::Thread("write"))
    }

    /// Whether another thread has failed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Keeps the first error; the threads up and down the line end as their channels close.
    fn fail(&self, error: Error) {
        self.failed.store(true, Ordering::Relaxed);
        if let Ok(mut first) = self.first_error.lock() {
            first.get_or_insert(error);
        }
    }

    pub fn utilisation(&self) -> Vec<Utilisation> {
        let seconds = self.start.elapsed().as_secs_f64();
        [&self.read, &self.prepare, &self.encode, &self.write].map(|meter| meter.read(seconds)).to_vec()
    }

    fn finish(self, total: usize) -> Result<Summary> {
        let utilisation = self.utilisation();
        if let Some(error) = self.first_error.into_inner().unwrap_or_else(|e| e.into_inner()) {
            return Err(error);
        }
        let tally = self.tally.into_inner().unwrap_or_else(|e| e.into_inner());
        if tally.units < total {
            return Err(Error::Interrupted { done: tally.units as u64, total: total as u64, unit: "units" });
        }
        let seconds = self.start.elapsed().as_secs_f64();
        Ok(Summary { counts: tally.counts, units: tally.units, seconds, utilisation })
    }
}

impl Local<'_> {
    /// Runs the stages over the units and commits each.
    ///
    /// # Errors
    /// The first error of any stage; too many unreadable rows; a signal. Units committed by then stay committed.
    pub fn run(self, units: &[InputUnit], progress: &Progress) -> Result<Summary> {
        let lanes = self.encode.len();
        let shared = Shared {
            source: self.source,
            sink: self.sink,
            progress,
            batch_size: self.batch_size,
            read: Meter::new("read", lanes),
            prepare: Meter::new("prepare", self.workers),
            encode: Meter::new("encode", lanes),
            write: Meter::new("write", lanes),
            tally: Mutex::new(Tally { before: self.before, ..Tally::default() }),
            max_bad_fraction: self.max_bad_fraction,
            signal: StopSignal::watch(),
            start: Instant::now(),
            failed: AtomicBool::new(false),
            first_error: Mutex::new(None),
        };
        let (todo, queue) = unbounded();
        for unit in units {
            // The receiver is alive.
            let _ = todo.send(unit.clone());
        }
        drop(todo);
        std::thread::scope(|scope| {
            let (jobs, inbox) = bounded::<Job>(self.workers);
            let mut threads = Vec::new();
            for _ in 0..self.workers {
                let (inbox, shared, prepare) = (inbox.clone(), &shared, self.prepare);
                threads.push(spawn(scope, "prepare", shared, move || work(prepare, &inbox, &shared.prepare)));
            }
            drop(inbox);
            // Enough batches in flight to keep every worker busy while the oldest one is waited for.
            let ahead = (2 * self.workers).max(4);
            for stage in self.encode {
                threads.extend(lane::spawn(scope, &shared, stage, queue.clone(), jobs.clone(), ahead));
            }
            drop(jobs);
            join(threads, &shared);
        });
        shared.finish(units.len())
    }
}

pub(super) type Thread<'scope> = (&'static str, Option<ScopedJoinHandle<'scope, ()>>);

/// Starts a thread of the run; its error stops the run.
pub(super) fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    name: &'static str,
    shared: &'scope Shared<'_>,
    body: impl FnOnce() -> Result<()> + Send + 'scope,
) -> Thread<'scope> {
    let thread = Builder::new().name(name.into()).spawn_scoped(scope, move || {
        if let Err(error) = body() {
            shared.fail(error);
        }
    });
    if thread.is_err() {
        shared.fail(Error::Thread(name));
    }
    (name, thread.ok())
}

fn join(threads: Vec<Thread<'_>>, shared: &Shared<'_>) {
    for (name, thread) in threads {
        if thread.is_some_and(|thread| thread.join().is_err()) {
            shared.fail(Error::Thread(name));
        }
    }
}

/// A worker: one thread, one batch at a time. The pool of one makes `Prepare` stay on this thread, so that the
/// number of workers is the number of busy cores.
fn work(prepare: &Prepare, inbox: &Receiver<Job>, meter: &Meter) -> Result<()> {
    let pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    let _pool = pool.map_err(|_| Error::Thread("prepare"))?;
    for job in inbox {
        let result = meter.time(|| prepare.run(&job.batch)).map_err(Error::from);
        // Nobody waits any more if the run has failed elsewhere.
        let _ = job.result.send(result);
    }
    Ok(())
}

/// Sends, or says that the receiving thread has ended.
pub(super) fn pass<T>(to: &Sender<T>, item: T) -> ControlFlow<()> {
    to.send(item).map_or(ControlFlow::Break(()), |()| ControlFlow::Continue(()))
}
