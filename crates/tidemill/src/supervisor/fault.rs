//! Faults of ranks: what can be wrong, and how the user reads it.

use std::fmt;
use std::time::Duration;

use super::messages::WorkerActivity;

/// What is wrong with a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultCause {
    /// A signal that the supervisor has not sent ended the process.
    Killed(i32),
    /// The rank failed with an error of its own.
    Failed(String),
    /// The rank refused its input. A restart does not help.
    Refused(String),
    /// Another process trains the run.
    Overtaken(String),
    /// The rank is too slow to take part.
    Straggler(String),
    /// The system stopped the process, such as a spot instance that is reclaimed. A checkpoint was
    /// written first.
    Reclaimed,
    /// There was no heartbeat for this time: the process or its machine is stopped.
    Silent(Duration),
    /// There was no step for this time, although the process is alive.
    Stalled(WorkerActivity, Duration),
    /// There was no heartbeat at all for this time.
    NeverStarted(Duration),
    /// The rank lost the others, and none of them is at fault: the network between them is.
    LostPeers(String),
}

/// A rank and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The rank at fault.
    pub rank: usize,
    /// What is wrong with the rank.
    pub cause: FaultCause,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, cause } = self;
        match cause {
            FaultCause::Killed(9) => {
                write!(f, "rank {rank} was killed (signal 9: by a user, or because memory ran out)")
            }
            FaultCause::Killed(signal) => write!(f, "rank {rank} died of signal {signal}"),
            FaultCause::Failed(message) | FaultCause::Refused(message) => {
                write!(f, "rank {rank} failed: {message}")
            }
            FaultCause::Straggler(message) | FaultCause::Overtaken(message) => f.write_str(message),
            FaultCause::Reclaimed => write!(f, "rank {rank} was stopped by a signal from outside"),
            FaultCause::Silent(time) => {
                write!(f, "rank {rank} hangs: no heartbeat for {} s", time.as_secs())
            }
            FaultCause::Stalled(activity, time) => {
                write!(f, "rank {rank} has made no step for {} s; it {activity}", time.as_secs())
            }
            FaultCause::NeverStarted(time) => {
                write!(f, "rank {rank} did not start within {} s", time.as_secs())
            }
            FaultCause::LostPeers(message) => {
                write!(f, "rank {rank} lost the connection to the others, which are alive: {message}")
            }
        }
    }
}
