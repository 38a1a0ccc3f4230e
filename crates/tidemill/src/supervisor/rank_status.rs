//! What the supervisor knows of a rank, and the time limits by which it judges ranks.

use std::time::Duration;

use super::messages::{TrainingEnd, WorkerActivity};

/// The time limits of fault detection.
#[derive(Debug, Clone, Copy)]
pub struct FaultLimits {
    /// Longest time from the start of a process to its first heartbeat.
    pub start: Duration,
    /// Longest time without a heartbeat.
    pub heartbeat: Duration,
    /// Longest time with heartbeats but without a step.
    pub stall: Duration,
    /// How long after the first failed rank another rank may still report that it caused the
    /// failure.
    pub blame: Duration,
    /// Longest time from a worker's report of its end to the exit of its process.
    pub exit: Duration,
}

/// How a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    /// The process exited with this code.
    Code(i32),
    /// A signal ended the process.
    Signal(i32),
}

/// What the supervisor knows of a rank. All times are ages: how long ago something happened.
#[derive(Debug, Clone)]
pub struct RankStatus {
    /// How the process exited, and how long ago.
    pub exit: Option<(ProcessExit, Duration)>,
    /// How the worker reported its end, and how long ago.
    pub end: Option<(TrainingEnd, Duration)>,
    /// Time since the last heartbeat. `None` before the first heartbeat.
    pub since_heartbeat: Option<Duration>,
    /// Time since the process was started.
    pub since_start: Duration,
    /// Time since the last step, or since the worker connected if there was no step.
    pub since_step: Duration,
    /// What the last heartbeat reported.
    pub activity: WorkerActivity,
}

impl RankStatus {
    /// Whether the rank has done its work. After its report its process may wait for the other
    /// ranks before it exits, but not longer than the exit limit. An error during clean-up does not
    /// matter any more.
    pub fn is_done(&self, limits: &FaultLimits) -> bool {
        match (&self.exit, &self.end) {
            (Some(_), Some((TrainingEnd::Done | TrainingEnd::Stopped, _))) => true,
            (Some((exit, _)), _) => *exit == ProcessExit::Code(0),
            (None, Some((TrainingEnd::Done | TrainingEnd::Stopped, since))) => *since > limits.exit,
            (None, None | Some(_)) => false,
        }
    }

    /// How the process failed, if it did. A process that reported a failure and then hangs in its
    /// clean-up (a thread, a communicator) counts as failed after `exit_limit`.
    pub fn failure(&self, exit_limit: Duration) -> Option<ProcessExit> {
        match (self.exit, &self.end) {
            (_, Some((TrainingEnd::Done | TrainingEnd::Stopped, _)))
            | (Some((ProcessExit::Code(0), _)), _) => None,
            (Some((exit, _)), _) => Some(exit),
            (None, end) => {
                end.as_ref().filter(|(_, since)| *since > exit_limit).map(|_| ProcessExit::Code(1))
            }
        }
    }

    /// How long ago the rank lost the others, with its message, if it reported nothing else.
    pub fn lost_peers(&self) -> Option<(Duration, &str)> {
        match &self.end {
            Some((TrainingEnd::LostPeers(message), since_report)) => {
                Some((self.exit.map_or(*since_report, |(_, since_exit)| since_exit), message))
            }
            _ => None,
        }
    }
}
