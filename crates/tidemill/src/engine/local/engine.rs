//! The engine for one machine: starts the threads that [`crate::engine`] draws, hands out the units, and gathers what became
//! of them.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Instant;

use arrow::array::RecordBatch;
use bytesize::ByteSize;
use crossbeam_channel::{Sender, bounded, unbounded};
use tidemill_data::InputUnit;
use tidemill_data::source::Source;
use tidemill_store::RowCounts;

use crate::engine::local::encode_pipeline;
use crate::engine::local::encode_pipeline::Line;
use crate::engine::local::memory_budget;
use crate::engine::local::memory_budget::{Budget, Memory, Plan};
use crate::engine::local::monitor;
use crate::engine::local::reader;
use crate::engine::local::reader::Opened;
use crate::engine::local::worker_pool;
use crate::engine::local::worker_pool::Gate;
use crate::engine::local::writer::Tally;
use crate::engine::sink::Sink;
use crate::engine::stage::Stage;
use crate::engine::stage_utilization::{Meter, Reading, Utilisation};
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// What to run and with how much of the machine.
pub struct Local<'a> {
    /// Reads the units.
    pub source: &'a dyn Source,
    /// The CPU stage, for all workers.
    pub prepare: &'a (dyn Stage + Sync),
    /// The second stage, once per encoder.
    pub encode: Vec<Box<dyn Stage + 'a>>,
    /// Takes the rows.
    pub sink: &'a dyn Sink,
    /// Kept rows in one encode batch.
    pub batch_size: usize,
    /// Threads that read ahead; at least one per encoder, and fewer where units hold so much that the memory would not
    /// suffice.
    pub readers: usize,
    /// The least and the most threads that prepare.
    pub workers: (usize, usize),
    /// Bytes that the batches in flight may take.
    pub memory: u64,
    /// Greatest share of unreadable rows.
    pub max_bad_fraction: f64,
    /// Rows of units committed before this run; they count towards `max_bad_fraction`.
    pub before: RowCounts,
    /// Ends the run after the units that are being worked on.
    pub stop: &'a StopSignal,
}

/// What a run did.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Rows of this run.
    pub counts: RowCounts,
    /// Units committed in this run.
    pub units: usize,
    /// Wall time.
    pub seconds: f64,
    /// What each stage did: read, prepare, encode, write. Nothing where that is not known.
    pub utilisation: Vec<Utilisation>,
    /// What the batches in flight took.
    pub memory: Option<Memory>,
}

/// What all threads of a run share.
pub(crate) struct Shared<'a> {
    pub source: &'a dyn Source,
    pub prepare_stage: &'a (dyn Stage + Sync),
    pub sink: &'a dyn Sink,
    pub progress: &'a Progress,
    pub batch_size: usize,
    /// Bytes of a row prepared and encoded, at most, without what it carries along; and the most that it may count for.
    row_bytes: u64,
    row_most: u64,
    pub budget: Budget,
    pub gate: Gate,
    /// Batches that wait for an encoder, and how many may.
    pub queued: AtomicUsize,
    pub room: usize,
    pub read: Meter,
    pub prepare: Meter,
    pub encode: Meter,
    pub write: Meter,
    tally: Mutex<Tally>,
    stop: &'a StopSignal,
    start: Instant,
    failed: AtomicBool,
    first_error: Mutex<Option<Error>>,
}

impl Shared<'_> {
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a job's rows prepared and encoded. Rows that carry more along than there is room for count as what lets
    /// each lane have an unfinished encode batch: otherwise all of them could wait for ever.
    pub fn work_of(&self, rows: &RecordBatch) -> u64 {
        let (n, carried) = (rows.num_rows() as u64, self.prepare_stage.carried_bytes(rows));
        (n * self.row_bytes + carried).min(n * self.row_most)
    }

    /// Whether another thread has failed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether no more units shall be begun.
    pub fn stopping(&self) -> bool {
        self.failed() || self.stop.raised()
    }

    /// Keeps the first error; the threads up and down the line end as their channels close.
    fn fail(&self, error: Error) {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
        self.budget.close();
    }

    /// The stages, in the order of the flow.
    pub fn meters(&self) -> [&Meter; 4] {
        [&self.read, &self.prepare, &self.encode, &self.write]
    }

    /// What the stages did since these readings.
    pub fn utilisation(&self, before: &[Reading; 4], since: Instant) -> [Utilisation; 4] {
        let (meters, seconds) = (self.meters(), since.elapsed().as_secs_f64());
        std::array::from_fn(|i| meters[i].since(&before[i], seconds))
    }

    fn finish(self) -> Result<Summary> {
        let utilisation = self.utilisation(&Default::default(), self.start).to_vec();
        self.sink.ended(&utilisation);
        if let Some(error) = self.first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let Tally { total, counts, committed, .. } =
            self.tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        if committed < total {
            return Err(Error::Interrupted { done: committed as u64, total: total as u64, unit: "units" });
        }
        let seconds = self.start.elapsed().as_secs_f64();
        Ok(Summary { counts, units: committed, seconds, utilisation, memory: Some(self.budget.memory()) })
    }
}

impl<'a> Local<'a> {
    /// Runs the stages over the units and commits each.
    ///
    /// # Errors
    /// Too little memory for the batches of all encoders or for a row group; the first error of any stage; too many unreadable rows; a
    /// signal. Units committed by then stay committed.
    pub fn run(mut self, units: &[InputUnit], progress: &'a Progress) -> Result<Summary> {
        let encoders = std::mem::take(&mut self.encode);
        let shared = self.share(units, &encoders, progress)?;
        std::thread::scope(|scope| {
            let (jobs, inbox) = bounded(self.workers.1);
            let (opened, to_read) = unbounded();
            let (lines, to_feed) = unbounded();
            let mut threads = Vec::new();
            for worker in 0..self.workers.1 {
                let (shared, inbox) = (&shared, inbox.clone());
                threads
                    .push(spawn(scope, "prepare", shared, move || worker_pool::work(shared, worker, &inbox)));
            }
            for _ in 0..shared.budget.plan().readers {
                let (shared, to_read) = (&shared, to_read.clone());
                threads.push(spawn(scope, "read", shared, move || reader::read(shared, &to_read)));
            }
            for stage in encoders {
                let (lines, jobs) = (to_feed.clone(), jobs.clone());
                threads.extend(encode_pipeline::spawn(scope, &shared, stage, lines, jobs, self.workers.1));
            }
            // Only the threads keep the channels open.
            drop((inbox, to_read, to_feed, jobs));
            let (running, over) = bounded(0);
            let monitor = {
                let (shared, range) = (&shared, self.workers);
                spawn(scope, "monitor", shared, move || monitor::watch(shared, range, &over))
            };
            hand_out(units, &shared, &opened, &lines);
            drop((opened, lines));
            join(threads);
            drop::<Sender<()>>(running);
            join(vec![monitor]);
        });
        shared.finish()
    }

    fn share(
        &self,
        units: &[InputUnit],
        encoders: &[Box<dyn Stage + 'a>],
        progress: &'a Progress,
    ) -> Result<Shared<'a>> {
        let lanes = encoders.len();
        let encoded = encoders.iter().map(|stage| stage.row_bytes()).max().unwrap_or(0);
        let row_bytes = self.prepare.row_bytes() + encoded;
        let rows = (lanes * encode_pipeline::least_rows(self.batch_size)) as u64;
        let working = rows * row_bytes;
        let heaviest = units.iter().max_by_key(|unit| unit.held);
        let held = heaviest.map_or(0, |unit| unit.held);
        let Some(plan) = Plan::new(self.memory, working, held, self.readers.max(lanes)) else {
            let (given, least) = (ByteSize(self.memory), memory_budget::least(working, 0));
            return Err(match heaviest {
                Some(unit) if self.memory >= least => Error::RowGroup {
                    given,
                    least: ByteSize::mib(memory_budget::least(working, held).div_ceil(1 << 20)),
                    held: ByteSize(held),
                    file: unit.file.uri.clone(),
                },
                _ => Error::Memory { given, least: ByteSize(least), lanes },
            });
        };
        let (budget, readers) = (Budget::new(self.memory, plan), plan.readers);
        Ok(Shared {
            source: self.source,
            prepare_stage: self.prepare,
            sink: self.sink,
            progress,
            batch_size: self.batch_size,
            row_bytes,
            row_most: plan.work_per_row(rows),
            budget,
            gate: Gate::new(self.workers.0),
            queued: AtomicUsize::new(0),
            room: lanes * encode_pipeline::CUTS_AHEAD,
            read: Meter::new("read", readers),
            prepare: Meter::new("prepare", self.workers.0),
            encode: Meter::new("encode", lanes),
            write: Meter::new("write", lanes),
            tally: Mutex::new(Tally {
                total: units.len(),
                before: self.before.clone(),
                allowed: self.max_bad_fraction,
                ..Tally::default()
            }),
            stop: self.stop,
            start: Instant::now(),
            failed: AtomicBool::new(false),
            first_error: Mutex::new(None),
        })
    }
}

/// Opens one unit after the other, for any reader and any lane; both take them in order.
fn hand_out(units: &[InputUnit], shared: &Shared<'_>, opened: &Sender<Opened>, lines: &Sender<Line>) {
    for unit in units {
        let share = shared.budget.open();
        if shared.stopping() {
            break;
        }
        let (to, batches) = unbounded();
        let reading = pass(opened, Opened { unit: unit.clone(), share, to });
        if reading.is_break() || pass(lines, Line { unit: unit.clone(), batches }).is_break() {
            break;
        }
    }
}

pub(crate) type Thread<'scope> = Option<ScopedJoinHandle<'scope, ()>>;

/// Starts a thread of the run; its error stops the run.
pub(crate) fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    name: &'static str,
    shared: &'scope Shared<'_>,
    body: impl FnOnce() -> Result<()> + Send + 'scope,
) -> Thread<'scope> {
    let thread = Builder::new().name(name.into()).spawn_scoped(scope, move || {
        let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Error::Thread(name)));
        if let Err(error) = result {
            shared.fail(error);
        }
    });
    if thread.is_err() {
        shared.fail(Error::Thread(name));
    }
    thread.ok()
}

fn join(threads: Vec<Thread<'_>>) {
    for thread in threads.into_iter().flatten() {
        // The thread has told how it ended.
        let _ = thread.join();
    }
}

/// Sends, or says that the receiving thread has ended.
pub(crate) fn pass<T>(to: &Sender<T>, item: T) -> ControlFlow<()> {
    to.send(item).map_or(ControlFlow::Break(()), |()| ControlFlow::Continue(()))
}
