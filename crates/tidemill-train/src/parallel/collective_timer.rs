//! Waits for asynchronous collectives and measures how long they take. On a CPU a thread waits for
//! them in the order in which they were started, and so knows when each was done. On a GPU only the
//! device waits, so the host cannot measure them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use tch::{Device, Tensor};
use tidemill_torch::PendingCollective;

use super::communication_time::CommunicationTime;
use crate::Error;

/// Measures collectives that are started one after the other.
#[derive(Debug)]
pub struct CollectiveTimer {
    /// Sends collectives to the waiting thread. `None` on a GPU.
    waiter: Option<Sender<(PendingCollective, Sender<Completion>)>>,
    /// When the last collective was done.
    last_done: Option<Instant>,
    communication_time: CommunicationTime,
}

/// A collective in flight.
#[derive(Debug)]
pub struct InFlight {
    started: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The thread waits for it, and sends its result.
    Watched(Receiver<Completion>),
    /// The device waits for it.
    Queued(PendingCollective),
}

/// The result of a collective, and when it was done.
type Completion = (Result<Tensor, tidemill_torch::Error>, Instant);

impl CollectiveTimer {
    /// A timer for collectives on `device`.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(device: Device) -> Result<Self, Error> {
        let mut timer =
            Self { waiter: None, last_done: None, communication_time: CommunicationTime::default() };
        if device == Device::Cpu {
            let (sender, receiver) = channel::<(PendingCollective, Sender<Completion>)>();
            let wait = move || {
                for (pending, done) in receiver {
                    // The receiver is gone if the thread that started the collective has failed.
                    let _ = done.send((pending.wait(), Instant::now()));
                }
            };
            let thread = std::thread::Builder::new().name("collectives".into()).spawn(wait);
            thread.map_err(Error::io("the thread that waits for collectives"))?;
            timer.waiter = Some(sender);
        }
        Ok(timer)
    }

    /// Takes over a collective that has just been started.
    pub fn track(&self, pending: PendingCollective) -> InFlight {
        let state = match &self.waiter {
            None => State::Queued(pending),
            Some(waiter) => {
                let (done, receiver) = channel();
                // If the thread has died, `done` is dropped, and `wait` reports that.
                let _ = waiter.send((pending, done));
                State::Watched(receiver)
            }
        };
        InFlight { started: Instant::now(), state }
    }

    /// Waits for a collective. Collectives must be waited for in the order in which they were
    /// started.
    ///
    /// # Errors
    /// [`Error::Peer`] if it failed: another rank has died, or cannot be reached.
    pub fn wait(&mut self, in_flight: InFlight) -> Result<Tensor, Error> {
        let asked = Instant::now();
        let (result, done) = match in_flight.state {
            State::Queued(pending) => (pending.wait(), Instant::now()),
            State::Watched(receiver) => {
                let died = |_| Error::World("the thread that waits for collectives has died".into());
                let (result, done) = receiver.recv().map_err(died)?;
                let from = self.last_done.map_or(in_flight.started, |last| last.max(in_flight.started));
                let busy = done.saturating_duration_since(from).as_secs_f64();
                self.communication_time.busy = Some(self.communication_time.busy.unwrap_or(0.0) + busy);
                self.last_done = Some(done);
                (result, done)
            }
        };
        self.communication_time.exposed += done.saturating_duration_since(asked).as_secs_f64();
        result.map_err(Error::Peer)
    }

    /// Takes the communication time since the last call.
    pub fn take_communication_time(&mut self) -> CommunicationTime {
        std::mem::take(&mut self.communication_time)
    }
}
