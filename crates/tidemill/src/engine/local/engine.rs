//! Starts the threads of a run, hands out the units in order, and sums up what became of them.

use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::thread::Scope;
use std::time::Instant;

use bytesize::ByteSize;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tidemill_data::InputUnit;
use tidemill_data::source::Source;
use tidemill_store::RowCounts;

use crate::engine::local::backpressure::memory_budget::MemoryBudget;
use crate::engine::local::backpressure::memory_plan::{MemoryPlan, min_memory};
use crate::engine::local::backpressure::queue_limits::{MAX_QUEUED_BATCHES, min_rows_in_flight};
use crate::engine::local::encode_pipeline::spawn_pipeline;
use crate::engine::local::messages::{UnitToFeed, UnitToRead, send};
use crate::engine::local::monitor::run_monitor;
use crate::engine::local::reader::run_reader;
use crate::engine::local::run_state::{EncodeQueue, RowCost, RunState, StageMeters, StopState};
use crate::engine::local::threads::{join_threads, spawn_thread};
use crate::engine::local::worker_gate::WorkerGate;
use crate::engine::local::worker_pool::run_worker;
use crate::engine::preprocess_log::PreprocessLog;
use crate::engine::quarantine_limit::RowTally;
use crate::engine::run_summary::RunSummary;
use crate::engine::sink::Sink;
use crate::engine::stage::Stage;
use crate::engine::stage_utilization::StageMeter;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// The engine for one machine: what to run, and with how much of the machine.
pub struct LocalEngine<'a> {
    /// Reads the units.
    pub source: &'a dyn Source,
    /// The prepare stage, which all workers share.
    pub prepare: &'a (dyn Stage + Sync),
    /// The encode stage, once per encoder.
    pub encoders: Vec<Box<dyn Stage + 'a>>,
    /// Takes the rows.
    pub sink: &'a dyn Sink,
    /// Kept rows in one encode batch.
    pub batch_size: usize,
    /// Threads that read ahead; at least one per encoder. If units hold so much that the memory
    /// would not suffice, there are fewer.
    pub readers: usize,
    /// The least and the most prepare workers.
    pub prepare_workers: RangeInclusive<usize>,
    /// Bytes that the batches in flight may take.
    pub memory: u64,
    /// The greatest allowed share of unreadable rows.
    pub max_bad_fraction: f64,
    /// Rows of units committed before this run. They count towards `max_bad_fraction`.
    pub earlier_counts: RowCounts,
    /// Ends the run after the units that are in work.
    pub stop: &'a StopSignal,
    /// Gets a line every few seconds.
    pub log: Option<&'a PreprocessLog>,
}

impl<'a> LocalEngine<'a> {
    /// Runs the stages over the units and commits each unit.
    ///
    /// # Errors
    /// Too little memory for the batches of all encoders or for a row group; the first error of any
    /// stage; too many unreadable rows; a signal. Units committed by then stay committed.
    pub fn run(mut self, units: &[InputUnit], progress: &'a Progress) -> Result<RunSummary> {
        let start = Instant::now();
        let encoders = std::mem::take(&mut self.encoders);
        let plan = self.plan_memory(units, &encoders)?;
        let state = self.build_state(units.len(), &encoders, plan, progress);
        std::thread::scope(|scope| self.run_threads(scope, units, &state, encoders));
        summarize_run(state, start)
    }

    /// Starts all threads, hands out the units, and waits until all threads have ended.
    fn run_threads<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        units: &[InputUnit],
        state: &'scope RunState<'a>,
        encoders: Vec<Box<dyn Stage + 'a>>,
    ) {
        let max_workers = *self.prepare_workers.end();
        let (tasks, worker_inbox) = bounded(max_workers);
        let (to_readers, reader_inbox) = unbounded();
        let (to_pipelines, pipeline_inbox) = unbounded();
        let mut threads = Vec::new();
        for worker in 0..max_workers {
            let inbox = worker_inbox.clone();
            threads.push(spawn_thread(scope, "prepare", state, move || run_worker(state, worker, &inbox)));
        }
        for _ in 0..state.memory.plan().readers {
            let inbox = reader_inbox.clone();
            threads.push(spawn_thread(scope, "read", state, move || run_reader(state, &inbox)));
        }
        for stage in encoders {
            let (inbox, tasks) = (pipeline_inbox.clone(), tasks.clone());
            threads.extend(spawn_pipeline(scope, state, stage, inbox, tasks, max_workers));
        }
        // From here on only the threads keep the channels open.
        drop((worker_inbox, reader_inbox, pipeline_inbox, tasks));
        let (run_guard, run_end): (Sender<()>, Receiver<()>) = bounded(0);
        let range = self.prepare_workers.clone();
        let log = self.log;
        let monitor =
            spawn_thread(scope, "monitor", state, move || run_monitor(state, &range, log, &run_end));
        hand_out_units(units, state, &to_readers, &to_pipelines);
        drop((to_readers, to_pipelines));
        join_threads(threads);
        drop(run_guard);
        join_threads(vec![monitor]);
    }

    /// Rows that all pipelines must be able to have in flight.
    fn rows_in_flight(&self, encoders: usize) -> u64 {
        (encoders * min_rows_in_flight(self.batch_size)) as u64
    }

    /// The most bytes that both stages add to a row.
    fn row_bytes(&self, encoders: &[Box<dyn Stage + 'a>]) -> u64 {
        let encoded = encoders.iter().map(|stage| stage.row_bytes()).max().unwrap_or(0);
        self.prepare.row_bytes() + encoded
    }

    /// Divides the memory, or returns how much more is needed and why.
    fn plan_memory(&self, units: &[InputUnit], encoders: &[Box<dyn Stage + 'a>]) -> Result<MemoryPlan> {
        let work_bytes = self.rows_in_flight(encoders.len()) * self.row_bytes(encoders);
        let heaviest = units.iter().max_by_key(|unit| unit.resident_bytes);
        let held = heaviest.map_or(0, |unit| unit.resident_bytes);
        let plan = MemoryPlan::new(self.memory, work_bytes, held, self.readers.max(encoders.len()));
        plan.ok_or_else(|| {
            let (given, least) = (ByteSize(self.memory), min_memory(work_bytes, 0));
            match heaviest {
                Some(unit) if self.memory >= least => Error::RowGroup {
                    given,
                    least: ByteSize::mib(min_memory(work_bytes, held).div_ceil(1 << 20)),
                    held: ByteSize(held),
                    file: unit.file.uri.clone(),
                },
                _ => Error::Memory { given, least: ByteSize(least), encoders: encoders.len() },
            }
        })
    }

    fn build_state(
        &self,
        total_units: usize,
        encoders: &[Box<dyn Stage + 'a>],
        plan: MemoryPlan,
        progress: &'a Progress,
    ) -> RunState<'a> {
        let min_workers = *self.prepare_workers.start();
        RunState {
            source: self.source,
            prepare_stage: self.prepare,
            sink: self.sink,
            progress,
            batch_size: self.batch_size,
            memory: MemoryBudget::new(self.memory, plan),
            row_cost: RowCost {
                row_bytes: self.row_bytes(encoders),
                max_row_bytes: plan.work_bytes_per_row(self.rows_in_flight(encoders.len())),
            },
            worker_gate: WorkerGate::new(min_workers),
            encode_queue: EncodeQueue {
                waiting: AtomicUsize::new(0),
                capacity: encoders.len() * MAX_QUEUED_BATCHES,
            },
            meters: StageMeters {
                read: StageMeter::new("read", plan.readers),
                prepare: StageMeter::new("prepare", min_workers),
                encode: StageMeter::new("encode", encoders.len()),
                write: StageMeter::new("write", encoders.len()),
            },
            tally: Mutex::new(RowTally {
                total_units,
                earlier_counts: self.earlier_counts.clone(),
                max_bad_fraction: self.max_bad_fraction,
                ..RowTally::default()
            }),
            stop: StopState::new(self.stop),
        }
    }
}

/// Opens one unit after the other, for any reader and any pipeline. Both take units in order.
fn hand_out_units(
    units: &[InputUnit],
    state: &RunState<'_>,
    to_readers: &Sender<UnitToRead>,
    to_pipelines: &Sender<UnitToFeed>,
) {
    for unit in units {
        let share = state.memory.open_unit();
        if state.stop.is_stopping() {
            break;
        }
        let (sender, batches) = unbounded();
        let to_read = UnitToRead { unit: unit.clone(), share, batches: sender };
        let to_feed = UnitToFeed { unit: unit.clone(), batches };
        if send(to_readers, to_read).is_break() || send(to_pipelines, to_feed).is_break() {
            break;
        }
    }
}

/// The summary of a finished run, or why it ended early.
fn summarize_run(state: RunState<'_>, start: Instant) -> Result<RunSummary> {
    let utilization = state.meters.utilization_since(&Default::default(), start).to_vec();
    state.sink.on_run_end(&utilization);
    if let Some(error) = state.stop.into_error() {
        return Err(error);
    }
    let tally = state.tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let RowTally { total_units, counts, committed_units, .. } = tally;
    if committed_units < total_units {
        let (done, total) = (committed_units as u64, total_units as u64);
        return Err(Error::Interrupted { done, total, unit: "units" });
    }
    let seconds = start.elapsed().as_secs_f64();
    let memory = Some(state.memory.usage());
    Ok(RunSummary { counts, units: committed_units, seconds, utilization, memory })
}
