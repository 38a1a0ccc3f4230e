//! Writes checkpoints in the background. A step waits only for the copy of the state; a thread
//! writes the copy. If the store fails, the thread retries until it succeeds. Until then no other
//! copy is taken, because all ranks must write the same steps.

use std::cell::OnceCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::state_copy::StateCopy;
use super::store::Checkpoints;
use super::writer::Writer;
use crate::Error;

/// The pause before the first retry. Each further pause is twice as long.
const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause before a retry.
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(60);

/// What happened to a checkpoint.
#[derive(Debug)]
pub enum WriteEvent {
    /// The checkpoint is committed.
    Committed { step: u64 },
    /// The checkpoint could not be written, and will be retried.
    Failed { step: u64, reason: String, retry_in: Duration },
    /// Expired checkpoints could not be deleted.
    NotDeleted { reason: String },
    /// Another process owns the run, and no more checkpoints are written.
    /// [`BackgroundWriter::finish`] gives the error.
    Overtaken,
}

/// A thread that writes checkpoints, one at a time.
pub struct BackgroundWriter {
    queue: Arc<Queue>,
    events: Receiver<WriteEvent>,
    thread: Option<JoinHandle<Option<Error>>>,
}

/// Hands state copies to the thread.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// The next copy to write.
    next: Option<StateCopy>,
    /// Whether the thread is writing a copy.
    is_writing: bool,
    /// Set when training ends: no more copies are queued, and retries end at the deadline.
    deadline: Option<Deadline>,
}

/// When the last checkpoint of a run is given up.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    /// The time from the end of training to the deadline.
    timeout: Duration,
}

impl QueueState {
    fn is_busy(&self) -> bool {
        self.is_writing || self.next.is_some()
    }
}

impl BackgroundWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(checkpoints: Arc<Checkpoints>, writer: Writer) -> Result<Self, Error> {
        let (queue, (sender, events)) = (Arc::<Queue>::default(), channel());
        let thread_queue = queue.clone();
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || thread_queue.run(&checkpoints, &writer, &sender))
            .map_err(Error::io("the thread that writes checkpoints"))?;
        Ok(Self { queue, events, thread: Some(thread) })
    }

    /// Whether a copy is queued or being written.
    pub fn is_busy(&self) -> bool {
        self.queue.lock().is_busy()
    }

    /// Waits until nothing is queued or being written, for at most `timeout`. Gives whether that is
    /// so.
    pub fn wait_until_idle(&self, timeout: Duration) -> bool {
        let is_busy = |state: &mut QueueState| state.is_busy();
        drop(self.queue.changed.wait_timeout_while(self.queue.lock(), timeout, is_busy));
        !self.is_busy()
    }

    /// Queues a copy, to be written after the one that is being written.
    ///
    /// # Errors
    /// If the thread has ended: a run must not continue without checkpoints.
    pub fn enqueue(&mut self, state: StateCopy) -> Result<(), Error> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return self.finish(Duration::ZERO).and_then(|()| Err(thread_died()));
        }
        self.queue.lock().next = Some(state);
        self.queue.changed.notify_all();
        Ok(())
    }

    /// Takes the events since the last call.
    pub fn drain_events(&self) -> impl Iterator<Item = WriteEvent> {
        self.events.try_iter()
    }

    /// Waits until everything is written. If the store fails, it retries for at most `timeout`.
    ///
    /// # Errors
    /// The error of the last checkpoint if it could not be written, or that the thread has died.
    pub fn finish(&mut self, timeout: Duration) -> Result<(), Error> {
        self.queue.lock().deadline = Some(Deadline { at: Instant::now() + timeout, timeout });
        self.queue.changed.notify_all();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(last)) => last.map_or(Ok(()), Err),
            Some(Err(_)) => Err(thread_died()),
            None => Ok(()),
        }
    }
}

/// Sends an event. If the run is over, nobody receives it.
fn send(events: &Sender<WriteEvent>, event: WriteEvent) {
    drop(events.send(event));
}

fn thread_died() -> Error {
    let message = "the thread that writes them has died; its panic is above".into();
    Error::Checkpoint { path: "of this run".into(), message }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        // A checkpoint that is being written stays valid even if the run has failed since.
        let _ = self.finish(Duration::ZERO);
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes queued copies until training ends. Gives the error of the last one if it could not be
    /// written.
    fn run(&self, checkpoints: &Checkpoints, writer: &Writer, events: &Sender<WriteEvent>) -> Option<Error> {
        let mut failure = None;
        while let Some(state) = self.wait_for_next() {
            failure = self.save_with_retries(&state, checkpoints, writer, events).err();
            self.lock().is_writing = false;
            self.changed.notify_all();
            if matches!(failure, Some(Error::Overtaken { .. })) {
                send(events, WriteEvent::Overtaken);
                break;
            }
        }
        failure
    }

    /// Waits for the next copy; `None` once training has ended.
    fn wait_for_next(&self) -> Option<StateCopy> {
        let is_waiting = |state: &mut QueueState| state.next.is_none() && state.deadline.is_none();
        let state = self.changed.wait_while(self.lock(), is_waiting);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = state.next.is_some();
        state.next.take()
    }

    /// Writes a copy, and retries until that succeeds.
    ///
    /// # Errors
    /// If it could not be written before the deadline.
    fn save_with_retries(
        &self,
        state: &StateCopy,
        checkpoints: &Checkpoints,
        writer: &Writer,
        events: &Sender<WriteEvent>,
    ) -> Result<(), Error> {
        let (step, mut pause) = (state.step(), FIRST_RETRY_PAUSE);
        loop {
            let own_shard_written = OnceCell::new();
            let should_wait = || self.should_wait_for_others(*own_shard_written.get_or_init(Instant::now));
            let Err(error) = checkpoints.save(state, writer, &should_wait) else {
                send(events, WriteEvent::Committed { step });
                // The checkpoint is committed even if expired ones cannot be deleted.
                if let Err(error) = checkpoints.delete_expired(writer) {
                    send(events, WriteEvent::NotDeleted { reason: error.to_string() });
                }
                return Ok(());
            };
            if self.is_past_deadline() || matches!(error, Error::Overtaken { .. }) {
                return Err(error);
            }
            send(events, WriteEvent::Failed { step, reason: error.to_string(), retry_in: pause });
            self.pause(pause);
            pause = (2 * pause).min(LONGEST_RETRY_PAUSE);
        }
    }

    fn is_past_deadline(&self) -> bool {
        self.lock().deadline.is_some_and(|deadline| deadline.at <= Instant::now())
    }

    /// Whether to wait longer for the shards of other ranks. On a slow disk the own shard may be
    /// written only after the deadline; the others then get as much time again from that moment.
    fn should_wait_for_others(&self, own_shard_written: Instant) -> bool {
        let deadline = self.lock().deadline;
        deadline.is_none_or(|Deadline { at, timeout }| Instant::now() < at.max(own_shard_written + timeout))
    }

    /// Pauses before a retry, but not beyond the deadline. Ends early if a deadline is set
    /// meanwhile.
    fn pause(&self, pause: Duration) {
        let has_deadline = self.lock().deadline.is_some();
        let is_unchanged = |state: &mut QueueState| state.deadline.is_some() == has_deadline;
        let left = self
            .lock()
            .deadline
            .map_or(pause, |deadline| deadline.at.saturating_duration_since(Instant::now()));
        // Whatever ended the pause, it is time to retry.
        drop(self.changed.wait_timeout_while(self.lock(), pause.min(left), is_unchanged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_ranks_get_the_timeout_again_once_the_own_shard_is_written() {
        let minute = Duration::from_secs(60);
        let now = Instant::now();
        let should_wait = |deadline: Option<(Instant, Duration)>, own_shard_written: Instant| {
            let queue = Queue::default();
            queue.lock().deadline = deadline.map(|(at, timeout)| Deadline { at, timeout });
            queue.should_wait_for_others(own_shard_written)
        };
        assert!(should_wait(None, now), "training continues");
        assert!(should_wait(Some((now + minute, minute)), now));
        // The own shard was written just before the deadline, or after it.
        assert!(should_wait(Some((now, minute)), now));
        assert!(!should_wait(Some((now, minute)), now.checked_sub(minute).unwrap()));
        // A run that has failed does not wait.
        assert!(!should_wait(Some((now, Duration::ZERO)), now));
    }
}
