//! Collectives on their way, and the time they take. On a CPU a thread waits for them, in the order in which they were
//! started, and so knows when each was done; a GPU is told to wait and nobody knows.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use tch::{Device, Tensor};
use tidemill_torch::PendingCollective;

use serde::Serialize;

use crate::Error;

/// Seconds of communication of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CommunicationTime {
    /// In which collectives were on their way; not known on a GPU, where nobody waits for them. What is not exposed of it is hidden
    /// behind computation.
    pub busy: Option<f64>,
    /// In which computation waited for them.
    pub exposed: f64,
}

/// Seconds of a step's communication, by what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepCommunication {
    /// Gradients, in reduce-scatters (without shards, in all-reduces).
    pub gradients: CommunicationTime,
    /// New weights, in all-gathers.
    pub weights: CommunicationTime,
    /// What ranks ask each other: whether all have their rows, and the sums of the step. Who is early waits here.
    pub ranks: CommunicationTime,
}

impl StepCommunication {
    /// The share of each of so many steps.
    pub fn over(self, steps: usize) -> Self {
        let [gradients, weights, ranks] = self.kinds().map(|(_, time)| time.over(steps));
        Self { gradients, weights, ranks }
    }

    /// Each with its name.
    pub fn kinds(self) -> [(&'static str, CommunicationTime); 3] {
        [("gradients", self.gradients), ("weights", self.weights), ("ranks", self.ranks)]
    }
}

impl CommunicationTime {
    /// Of what computation on `device` does nothing but wait for.
    pub fn waited(device: Device, seconds: f64) -> Self {
        Self { busy: (device == Device::Cpu).then_some(seconds), exposed: seconds }
    }

    /// The share of each of so many steps.
    fn over(self, steps: usize) -> Self {
        let steps = steps.max(1) as f64;
        Self { busy: self.busy.map(|busy| busy / steps), exposed: self.exposed / steps }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        let busy = self.busy.zip(other.busy).map(|(a, b)| a + b).or(self.busy).or(other.busy);
        Self { busy, exposed: self.exposed + other.exposed }
    }
}

/// Follows collectives that are started one after the other.
#[derive(Debug)]
pub struct Timer {
    /// To the thread that waits, on a CPU.
    waits: Option<Sender<(PendingCollective, Sender<Done>)>>,
    /// When the last was done.
    quiet_since: Option<Instant>,
    communication_time: CommunicationTime,
}

/// A collective on its way.
#[derive(Debug)]
pub struct InFlight {
    started: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Watched(Receiver<Done>),
    Queued(PendingCollective),
}

type Done = (Result<Tensor, tidemill_torch::Error>, Instant);

impl Timer {
    /// For collectives on `device`.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn new(device: Device) -> Result<Self, Error> {
        let mut timer =
            Self { waits: None, quiet_since: None, communication_time: CommunicationTime::default() };
        if device == Device::Cpu {
            let (sender, receiver) = channel::<(PendingCollective, Sender<Done>)>();
            let wait = move || {
                for (pending, done) in receiver {
                    // Whoever started it may have failed meanwhile.
                    let _ = done.send((pending.wait(), Instant::now()));
                }
            };
            let thread = std::thread::Builder::new().name("collectives".into()).spawn(wait);
            thread.map_err(Error::io("the thread that waits for collectives"))?;
            timer.waits = Some(sender);
        }
        Ok(timer)
    }

    /// Follows a collective that has just been started.
    pub fn follow(&self, pending: PendingCollective) -> InFlight {
        let state = match &self.waits {
            None => State::Queued(pending),
            Some(waits) => {
                let (done, receiver) = channel();
                // If the thread is gone, so is `done`, which `wait` sees.
                let _ = waits.send((pending, done));
                State::Watched(receiver)
            }
        };
        InFlight { started: Instant::now(), state }
    }

    /// Waits for a collective; they are waited for in the order in which they were started.
    ///
    /// # Errors
    /// If it failed: a peer has died, or cannot be reached.
    pub fn wait(&mut self, in_flight: InFlight) -> Result<Tensor, Error> {
        let asked = Instant::now();
        let (result, done) = match in_flight.state {
            State::Queued(pending) => (pending.wait(), Instant::now()),
            State::Watched(receiver) => {
                let gone = |_| Error::World("the thread that waits for collectives has died".into());
                let (result, done) = receiver.recv().map_err(gone)?;
                let from = self.quiet_since.map_or(in_flight.started, |quiet| quiet.max(in_flight.started));
                let busy = done.saturating_duration_since(from).as_secs_f64();
                self.communication_time.busy = Some(self.communication_time.busy.unwrap_or(0.0) + busy);
                self.quiet_since = Some(done);
                (result, done)
            }
        };
        self.communication_time.exposed += done.saturating_duration_since(asked).as_secs_f64();
        result.map_err(Error::Peer)
    }

    /// The time since the last call.
    pub fn communication_time(&mut self) -> CommunicationTime {
        std::mem::take(&mut self.communication_time)
    }
}
