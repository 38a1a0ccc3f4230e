//! Writes checkpoints while training goes on. The state is copied, which is all that a step waits for; a thread writes the
//! copy. If the store fails, it tries again, until it succeeds or a newer copy takes the place of this one.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::checkpoint::{Checkpoints, Snapshot};

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
    /// A newer one is written instead.
    Superseded { step: u64 },
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
    /// After this nothing is tried again; nothing more is handed over.
    ends: Option<Instant>,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn start(checkpoints: Arc<Checkpoints>) -> Result<Self, Error> {
        let (desk, (told, events)) = (Arc::<Desk>::default(), channel());
        let theirs = desk.clone();
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || theirs.serve(&checkpoints, &told))
            .map_err(Error::io("the thread that writes checkpoints"))?;
        Ok(Self { desk, events, thread: Some(thread) })
    }

    /// Hands over a copy. One that still waits is superseded.
    pub fn hand(&self, snapshot: Snapshot) {
        self.desk.lock().next = Some(snapshot);
        self.desk.changed.notify_all();
    }

    /// What happened since the last call.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.events.try_iter()
    }

    /// Waits until all is written, and no longer than `patience` for a store that fails.
    ///
    /// # Errors
    /// Why the last checkpoint could not be written.
    pub fn finish(&mut self, patience: Duration) -> Result<(), Error> {
        self.desk.lock().ends = Some(Instant::now() + patience);
        self.desk.changed.notify_all();
        let last = self.thread.take().and_then(|thread| thread.join().ok()).flatten();
        last.map_or(Ok(()), Err)
    }
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
    fn serve(&self, checkpoints: &Checkpoints, told: &Sender<Event>) -> Option<Error> {
        let mut failure = None;
        while let Some(snapshot) = self.take() {
            failure = self.save(&snapshot, checkpoints, told).err();
        }
        failure
    }

    /// The next copy, once there is one; `None` at the end.
    fn take(&self) -> Option<Snapshot> {
        let waits = |state: &mut State| state.next.is_none() && state.ends.is_none();
        let state = self.changed.wait_while(self.lock(), waits);
        state.unwrap_or_else(PoisonError::into_inner).next.take()
    }

    /// Writes a copy, however often it takes.
    ///
    /// # Errors
    /// Why it could not be written, at the end.
    fn save(
        &self,
        snapshot: &Snapshot,
        checkpoints: &Checkpoints,
        told: &Sender<Event>,
    ) -> Result<(), Error> {
        let (step, mut pause) = (snapshot.step(), FIRST_PAUSE);
        // If nobody listens, the run is over.
        let tell = |event| drop(told.send(event));
        loop {
            let Err(error) = checkpoints.save(snapshot) else {
                tell(Event::Committed { step });
                return Ok(());
            };
            tell(Event::Failed { step, why: error.to_string(), again_in: pause });
            let waits = |state: &mut State| state.next.is_none() && state.ends.is_none();
            let waited = self.changed.wait_timeout_while(self.lock(), pause, waits);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.next.is_some() {
                tell(Event::Superseded { step });
                return Ok(());
            }
            if let Some(ends) = state.ends {
                let left = ends.saturating_duration_since(Instant::now());
                drop(state);
                if left.is_zero() {
                    return Err(error);
                }
                std::thread::sleep(pause.min(left));
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}
