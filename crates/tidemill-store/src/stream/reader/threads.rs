//! The threads of a stream: one plans, some read what the plan asks for, and some copy rows into
//! batches. Batches come out in order, whichever thread makes them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, never, select_biased, unbounded};

use super::gather::Gatherer;
use super::read_planner::{ReadPlanner, Reads, Task};
use super::slot::RowSlot;
use crate::error::{Error, Result};
use crate::stream::batch::Batch;

/// The threads of a stream. They end when this is dropped.
#[derive(Debug)]
pub struct ReaderThreads {
    batches: Receiver<Receiver<Result<Batch>>>,
    /// The next batch, if it was requested already.
    next: Option<NextBatch>,
    stopped: Arc<AtomicBool>,
}

/// How long one wait lasts where there is no limit.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// The batch that comes next.
#[derive(Debug)]
enum NextBatch {
    Pending(Receiver<Result<Batch>>),
    Ready(Result<Batch>),
}

/// How many threads there are, and how far they prefetch.
#[derive(Debug, Clone, Copy)]
pub struct ThreadCounts {
    pub readers: usize,
    pub gatherers: usize,
    /// Number of batches to prefetch.
    pub prefetch: usize,
}

impl ReaderThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::Threads`].
    pub fn start(planner: ReadPlanner, gatherer: Gatherer, numbers: ThreadCounts) -> Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let (ordered, batches) = bounded(numbers.prefetch);
        let (tasks, to_gather) = unbounded::<(Task, Sender<Result<Batch>>)>();
        let (rows, rows_to_read) = unbounded::<Arc<RowSlot>>();
        let (blocks, blocks_to_read) = unbounded::<Arc<RowSlot>>();
        for _ in 0..numbers.readers.max(1) {
            let (rows, blocks, stopped) = (rows_to_read.clone(), blocks_to_read.clone(), stopped.clone());
            spawn("stream-read", move || run_reader(rows, blocks, &stopped))?;
        }
        let gatherer = Arc::new(gatherer);
        for _ in 0..numbers.gatherers.max(1) {
            let (tasks, gatherer) = (to_gather.clone(), gatherer.clone());
            spawn("stream-gather", move || {
                for (task, done) in tasks {
                    // If the receiver is gone, the stream was dropped.
                    let _ = done.send(gatherer.make_batch(&task));
                }
            })?;
        }
        spawn("stream-plan", move || run_planner(planner, &gatherer, &ordered, &tasks, (&rows, &blocks)))?;
        Ok(Self { batches, next: None, stopped })
    }

    /// Waits until `until` for the next batch or for its error.
    fn wait_until(&mut self, until: Instant) {
        let pending = match self.next.take() {
            Some(NextBatch::Pending(batch)) => Ok(batch),
            None => self.batches.recv_deadline(until),
            ready => {
                self.next = ready;
                return;
            }
        };
        self.next = match pending.map(|batch| (batch.recv_deadline(until), batch)) {
            Ok((Ok(batch), _)) => Some(NextBatch::Ready(batch)),
            Ok((Err(RecvTimeoutError::Timeout), batch)) => Some(NextBatch::Pending(batch)),
            Err(RecvTimeoutError::Timeout) => None,
            Ok((Err(RecvTimeoutError::Disconnected), _)) | Err(RecvTimeoutError::Disconnected) => {
                Some(NextBatch::Ready(Err(Error::ReaderDied)))
            }
        };
    }

    /// Whether the next batch is ready within a time.
    ///
    /// # Errors
    /// If the rows of the batch cannot be read.
    pub fn is_ready_within(&mut self, timeout: Duration) -> Result<bool> {
        self.wait_until(Instant::now() + timeout);
        match self.next.take() {
            Some(NextBatch::Ready(Err(error))) => Err(error),
            next => {
                self.next = next;
                Ok(matches!(self.next, Some(NextBatch::Ready(_))))
            }
        }
    }

    /// The next batch if it is ready, without taking it. An error stays for the call that takes the
    /// batch.
    pub fn peek(&mut self) -> Option<&Batch> {
        self.wait_until(Instant::now());
        match &self.next {
            Some(NextBatch::Ready(Ok(batch))) => Some(batch),
            _ => None,
        }
    }

    /// Returns the next batch. Waits until it is ready.
    ///
    /// # Errors
    /// The errors of [`is_ready_within`](Self::is_ready_within).
    pub fn take_next(&mut self) -> Result<Batch> {
        loop {
            self.wait_until(Instant::now() + MAX_WAIT);
            match self.next.take() {
                Some(NextBatch::Ready(batch)) => return batch,
                pending => self.next = pending,
            }
        }
    }
}

impl Drop for ReaderThreads {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Plans until the stream is dropped. As many batches are in progress as the stream prefetches. The
/// first batch is made alone, so that it is ready soon.
fn run_planner(
    mut planner: ReadPlanner,
    gatherer: &Gatherer,
    ordered: &Sender<Receiver<Result<Batch>>>,
    tasks: &Sender<(Task, Sender<Result<Batch>>)>,
    (rows, blocks): (&Sender<Arc<RowSlot>>, &Sender<Arc<RowSlot>>),
) {
    for number in 0_u64.. {
        let (task, reads) = planner.plan_next();
        let Reads { rows: row_slots, blocks: block_slots } = reads;
        let (done, result) = bounded(1);
        let is_requested = row_slots.into_iter().all(|slot| rows.send(slot).is_ok())
            && block_slots.into_iter().all(|slot| blocks.send(slot).is_ok());
        let is_sent = match number {
            0 => done.send(gatherer.make_batch(&task)).is_ok(),
            _ => tasks.send((task, done)).is_ok(),
        };
        if !is_requested || !is_sent || ordered.send(result).is_err() {
            return;
        }
    }
}

/// Reads rows that a batch waits for before blocks that later batches need.
fn run_reader(mut rows: Receiver<Arc<RowSlot>>, mut blocks: Receiver<Arc<RowSlot>>, stopped: &AtomicBool) {
    let mut open = 2;
    while open > 0 {
        let slot = select_biased! {
            recv(rows) -> slot => slot.inspect_err(|_| rows = never()),
            recv(blocks) -> slot => slot.inspect_err(|_| blocks = never()),
        };
        let Ok(slot) = slot else {
            open -= 1;
            continue;
        };
        // A thread that waits for these rows must not wait forever if reading them panicked.
        if stopped.load(Ordering::Relaxed) || catch_unwind(AssertUnwindSafe(|| slot.load())).is_err() {
            slot.abandon();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    Builder::new().name(name.into()).spawn(body)?;
    Ok(())
}
