//! All-gathers of working weights that are in flight.

use std::collections::VecDeque;

use tch::{Device, Tensor};
use tidemill_torch::{ProcessGroup, guard};

use super::collective_timer::{CollectiveTimer, InFlight};
use super::communication_time::CommunicationTime;
use crate::Error;

/// All-gathers in flight.
#[derive(Debug)]
pub struct WeightGathers {
    /// With the index of their bucket, in the order in which they were started.
    in_flight: VecDeque<(usize, InFlight)>,
    timer: CollectiveTimer,
    /// The first error. Hooks of a forward pass cannot return it.
    error: Option<Error>,
}

impl WeightGathers {
    /// No gathers yet, of weights on `device`.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(device: Device) -> Result<Self, Error> {
        Ok(Self { in_flight: VecDeque::new(), timer: CollectiveTimer::new(device)?, error: None })
    }

    /// Whether none is in flight.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Starts to gather a bucket's `weights` from the ranks' partitions, which may be of any dtype.
    ///
    /// # Errors
    /// [`Error::Peer`] if the gather cannot be started.
    pub fn start(
        &mut self,
        group: &ProcessGroup,
        bucket: usize,
        partition: &Tensor,
        weights: &Tensor,
    ) -> Result<(), Error> {
        let partition = guard(|| partition.to_kind(weights.kind()))?;
        let pending = group.all_gather_into(&partition, weights).map_err(Error::Peer)?;
        self.in_flight.push_back((bucket, self.timer.track(pending)));
        Ok(())
    }

    /// Waits, in the order in which they were started, until none of a needed bucket is in flight. An error is kept
    /// for [`Self::take_error`].
    pub fn wait_for(&mut self, is_needed: impl Fn(usize) -> bool) {
        while self.in_flight.iter().any(|(bucket, _)| is_needed(*bucket))
            && let Some((_, in_flight)) = self.in_flight.pop_front()
        {
            if let Err(error) = self.timer.wait(in_flight) {
                self.keep_error(error);
            }
        }
    }

    /// Keeps an error, if there is none yet.
    pub fn keep_error(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// The first error of a gather, once.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Takes the time that gathers took since the last call.
    pub fn take_communication_time(&mut self) -> CommunicationTime {
        self.timer.take_communication_time()
    }
}
