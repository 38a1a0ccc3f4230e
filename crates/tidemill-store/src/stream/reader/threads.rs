//! The threads behind a stream: one plans, some read what the plan says, some copy rows into batches. Batches come out in
//! their order, whoever made them.

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

/// Ends its threads when it is dropped.
#[derive(Debug)]
pub struct ReaderThreads {
    batches: Receiver<Receiver<Result<Batch>>>,
    /// The next batch, if it was asked for already.
    next: Option<Next>,
    stopped: Arc<AtomicBool>,
}

/// How long is waited at a time for what has no limit.
const LONG: Duration = Duration::from_secs(3600);

/// The batch that comes next.
#[derive(Debug)]
enum Next {
    Coming(Receiver<Result<Batch>>),
    There(Result<Batch>),
}

/// How many of them, and how far ahead.
#[derive(Debug, Clone, Copy)]
pub struct ThreadCounts {
    pub readers: usize,
    pub gatherers: usize,
    /// Batches.
    pub prefetch: usize,
}

impl ReaderThreads {
    /// Starts them.
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
            spawn("stream-read", move || read(rows, blocks, &stopped))?;
        }
        let gatherer = Arc::new(gatherer);
        for _ in 0..numbers.gatherers.max(1) {
            let (tasks, gatherer) = (to_gather.clone(), gatherer.clone());
            spawn("stream-gather", move || {
                for (task, done) in tasks {
                    // If nobody waits for it, the stream has been dropped.
                    let _ = done.send(gatherer.batch(&task));
                }
            })?;
        }
        spawn("stream-plan", move || plan(planner, &gatherer, &ordered, &tasks, (&rows, &blocks)))?;
        Ok(Self { batches, next: None, stopped })
    }

    /// Waits until then for the next batch, or for why there is none.
    fn look(&mut self, until: Instant) {
        let coming = match self.next.take() {
            Some(Next::Coming(batch)) => Ok(batch),
            None => self.batches.recv_deadline(until),
            there => {
                self.next = there;
                return;
            }
        };
        self.next = match coming.map(|batch| (batch.recv_deadline(until), batch)) {
            Ok((Ok(batch), _)) => Some(Next::There(batch)),
            Ok((Err(RecvTimeoutError::Timeout), batch)) => Some(Next::Coming(batch)),
            Err(RecvTimeoutError::Timeout) => None,
            Ok((Err(RecvTimeoutError::Disconnected), _)) | Err(RecvTimeoutError::Disconnected) => {
                Some(Next::There(Err(Error::ReaderDied)))
            }
        };
    }

    /// Whether the next batch is there in time.
    ///
    /// # Errors
    /// If its rows cannot be read.
    pub fn is_ready_within(&mut self, patience: Duration) -> Result<bool> {
        self.look(Instant::now() + patience);
        match self.next.take() {
            Some(Next::There(Err(error))) => Err(error),
            next => {
                self.next = next;
                Ok(matches!(self.next, Some(Next::There(_))))
            }
        }
    }

    /// The next batch, if it is there; it is still to be taken. Why there is none, whoever takes it is told.
    pub fn peek(&mut self) -> Option<&Batch> {
        self.look(Instant::now());
        match &self.next {
            Some(Next::There(Ok(batch))) => Some(batch),
            _ => None,
        }
    }

    /// The next batch; waits until it is there.
    ///
    /// # Errors
    /// As [`is_ready_within`](Self::is_ready_within).
    pub fn next(&mut self) -> Result<Batch> {
        loop {
            self.look(Instant::now() + LONG);
            match self.next.take() {
                Some(Next::There(batch)) => return batch,
                coming => self.next = coming,
            }
        }
    }
}

impl Drop for ReaderThreads {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Plans on until the stream is dropped. As many batches are on their way as the stream has room for, but the first is made
/// alone, so that it is there soon.
fn plan(
    mut planner: ReadPlanner,
    gatherer: &Gatherer,
    ordered: &Sender<Receiver<Result<Batch>>>,
    tasks: &Sender<(Task, Sender<Result<Batch>>)>,
    (rows, blocks): (&Sender<Arc<RowSlot>>, &Sender<Arc<RowSlot>>),
) {
    for number in 0_u64.. {
        let (task, reads) = planner.next();
        let Reads { rows: single, blocks: whole } = reads;
        let (done, result) = bounded(1);
        let asked = single.into_iter().all(|slot| rows.send(slot).is_ok())
            && whole.into_iter().all(|slot| blocks.send(slot).is_ok());
        let under_way = match number {
            0 => done.send(gatherer.batch(&task)).is_ok(),
            _ => tasks.send((task, done)).is_ok(),
        };
        if !asked || !under_way || ordered.send(result).is_err() {
            return;
        }
    }
}

/// Reads what batches wait for before what later ones need.
fn read(mut rows: Receiver<Arc<RowSlot>>, mut blocks: Receiver<Arc<RowSlot>>, stopped: &AtomicBool) {
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
        // Whoever waits for rows on which a thread has panicked must not wait for ever.
        if stopped.load(Ordering::Relaxed) || catch_unwind(AssertUnwindSafe(|| slot.load())).is_err() {
            slot.abandon();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    Builder::new().name(name.into()).spawn(body)?;
    Ok(())
}
