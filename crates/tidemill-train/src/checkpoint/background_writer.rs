//! Writes checkpoints while training goes on. The state is copied, which is all that a step waits for; a thread writes the
//! copy. If the store fails, it tries again until it succeeds. Meanwhile no other copy is taken, for all ranks have to write the same.

use std::cell::OnceCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::checkpoint::state_copy::Snapshot;
use crate::checkpoint::{Checkpoints, Writer};

/// The pause before a second try; each that follows is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What became of a checkpoint.
#[derive(Debug)]
pub enum Event {
    /// It is there.
    Committed { step: u64 },
    /// It could not be written.
    Failed { step: u64, why: String, again_in: Duration },
    /// Those that are too old could not be removed.
    Kept { why: String },
    /// Another process has the run: no more is written. [`Saver::finish`] says why.
    Overtaken,
}

/// A thread that writes checkpoints, one at a time.
pub struct Saver {
    desk: Arc<Desk>,
    events: Receiver<Event>,
    thread: Option<JoinHandle<Option<Error>>>,
}

/// Where copies are handed over.
#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: Option<Snapshot>,
    /// Whether one is being written.
    writing: bool,
    /// After this nothing is tried again; nothing more is handed over.
    ends: Option<End>,
}

/// When a run's last checkpoint is given up.
#[derive(Clone, Copy)]
struct End {
    at: Instant,
    /// From the end of training to then.
    patience: Duration,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn start(checkpoints: Arc<Checkpoints>, writer: Writer) -> Result<Self, Error> {
        let (desk, (told, events)) = (Arc::<Desk>::default(), channel());
        let theirs = desk.clone();
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || theirs.serve(&checkpoints, &writer, &told))
            .map_err(Error::io("the thread that writes checkpoints"))?;
        Ok(Self { desk, events, thread: Some(thread) })
    }

    /// Whether a copy is still to be written.
    pub fn is_busy(&self) -> bool {
        let state = self.desk.lock();
        state.writing || state.next.is_some()
    }

    /// Whether nothing is left to be written, or will be before so much time has passed.
    pub fn is_idle_within(&self, time: Duration) -> bool {
        let waits = |state: &mut State| state.writing || state.next.is_some();
        drop(self.desk.changed.wait_timeout_while(self.desk.lock(), time, waits));
        !self.is_busy()
    }

    /// Hands over a copy, to be written after the one that is being written.
    ///
    /// # Errors
    /// If the thread has ended: a run without checkpoints is not what was asked for.
    pub fn hand(&mut self, snapshot: Snapshot) -> Result<(), Error> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return self.finish(Duration::ZERO).and_then(|()| Err(died()));
        }
        self.desk.lock().next = Some(snapshot);
        self.desk.changed.notify_all();
        Ok(())
    }

    /// What happened since the last call.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.events.try_iter()
    }

    /// Waits until all is written, and no longer than `patience` for a store that fails.
    ///
    /// # Errors
    /// Why the last checkpoint could not be written, or that the thread has died.
    pub fn finish(&mut self, patience: Duration) -> Result<(), Error> {
        self.desk.lock().ends = Some(End { at: Instant::now() + patience, patience });
        self.desk.changed.notify_all();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(last)) => last.map_or(Ok(()), Err),
            Some(Err(_)) => Err(died()),
            None => Ok(()),
        }
    }
}

/// If nobody listens, the run is over.
fn tell(told: &Sender<Event>, event: Event) {
    drop(told.send(event));
}

fn died() -> Error {
    let message = "the thread that writes them has died; its panic is above".into();
    Error::Checkpoint { path: "of this run".into(), message }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // What is being written is as good as ever, whatever has happened to the run.
        let _ = self.finish(Duration::ZERO);
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is handed over until the end; gives why the last could not be written.
    fn serve(&self, checkpoints: &Checkpoints, writer: &Writer, told: &Sender<Event>) -> Option<Error> {
        let mut failure = None;
        while let Some(snapshot) = self.take() {
            failure = self.save(&snapshot, checkpoints, writer, told).err();
            self.lock().writing = false;
            self.changed.notify_all();
            if matches!(failure, Some(Error::Overtaken { .. })) {
                tell(told, Event::Overtaken);
                break;
            }
        }
        failure
    }

    /// The next copy, once there is one; `None` at the end.
    fn take(&self) -> Option<Snapshot> {
        let waits = |state: &mut State| state.next.is_none() && state.ends.is_none();
        let state = self.changed.wait_while(self.lock(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.writing = state.next.is_some();
        state.next.take()
    }

    /// Writes a copy, however often it takes.
    ///
    /// # Errors
    /// Why it could not be written, at the end.
    fn save(
        &self,
        snapshot: &Snapshot,
        checkpoints: &Checkpoints,
        writer: &Writer,
        told: &Sender<Event>,
    ) -> Result<(), Error> {
        let (step, mut pause) = (snapshot.step(), FIRST_PAUSE);
        loop {
            let own_is_written = OnceCell::new();
            let wait = || self.waits_for_others(*own_is_written.get_or_init(Instant::now));
            let Err(error) = checkpoints.save(snapshot, writer, &wait) else {
                tell(told, Event::Committed { step });
                // It is there, whatever becomes of older ones.
                if let Err(error) = checkpoints.retain(writer) {
                    tell(told, Event::Kept { why: error.to_string() });
                }
                return Ok(());
            };
            if self.time_is_up() || matches!(error, Error::Overtaken { .. }) {
                return Err(error);
            }
            tell(told, Event::Failed { step, why: error.to_string(), again_in: pause });
            self.pause(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    fn time_is_up(&self) -> bool {
        self.lock().ends.is_some_and(|end| end.at <= Instant::now())
    }

    /// Whether the shards of others are still waited for, since one's own was written: on a slow disk that may be after the end,
    /// and theirs take as long.
    fn waits_for_others(&self, since: Instant) -> bool {
        self.lock().ends.is_none_or(|End { at, patience }| Instant::now() < at.max(since + patience))
    }

    /// Waits, but not beyond the end; if that is set meanwhile, no longer.
    fn pause(&self, pause: Duration) {
        let has_end = self.lock().ends.is_some();
        let waits = |state: &mut State| state.ends.is_some() == has_end;
        let left = self.lock().ends.map_or(pause, |end| end.at.saturating_duration_since(Instant::now()));
        // Woken for any reason, it is time to try again.
        drop(self.changed.wait_timeout_while(self.lock(), pause.min(left), waits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_others_have_as_long_as_ones_own_had() {
        let minute = Duration::from_secs(60);
        let now = Instant::now();
        let waits = |end: Option<(Instant, Duration)>, own_is_written: Instant| {
            let desk = Desk::default();
            desk.lock().ends = end.map(|(at, patience)| End { at, patience });
            desk.waits_for_others(own_is_written)
        };
        assert!(waits(None, now), "training goes on");
        assert!(waits(Some((now + minute, minute)), now));
        // Written only just before the end, or after it.
        assert!(waits(Some((now, minute)), now));
        assert!(!waits(Some((now, minute)), now.checked_sub(minute).unwrap()));
        // A run that has failed waits for nobody.
        assert!(!waits(Some((now, Duration::ZERO)), now));
    }
}
