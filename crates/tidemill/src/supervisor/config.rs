//! `[supervisor]` of the run file: the time limits after which a worker counts as lost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rank_status::FaultLimits;

/// How long after the first failed rank another rank may still report that it caused the failure.
const BLAME_LIMIT: Duration = Duration::from_secs(5);

/// How long a worker's process may take to exit after the worker has reported its end.
const EXIT_LIMIT: Duration = Duration::from_secs(20);

/// `[supervisor]`: when `tidemill train --workers` treats a worker as lost. All times are in
/// seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SupervisorConfig {
    /// Longest time from the start of a worker to its first heartbeat.
    pub start_seconds: f64,
    /// Longest time without a heartbeat.
    pub heartbeat_seconds: f64,
    /// Longest time with heartbeats but without a step. Waiting for data counts, and the first step
    /// takes longest.
    pub stall_seconds: f64,
    /// Longest time from a request to stop until all workers have saved their state and exited.
    pub grace_seconds: f64,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self { start_seconds: 600.0, heartbeat_seconds: 30.0, stall_seconds: 1800.0, grace_seconds: 120.0 }
    }
}

impl SupervisorConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// The key of an invalid time, and what it must be.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        for (key, seconds) in [
            ("supervisor.start_seconds", self.start_seconds),
            ("supervisor.heartbeat_seconds", self.heartbeat_seconds),
            ("supervisor.stall_seconds", self.stall_seconds),
            ("supervisor.grace_seconds", self.grace_seconds),
        ] {
            // Heartbeats come five times a second, and later on a busy machine: less than a second
            // is too strict.
            if !(seconds >= 1.0 && seconds.is_finite()) {
                return Err((key, format!("{seconds} must be a number of seconds, at least 1")));
            }
        }
        Ok(())
    }

    /// The limits for fault detection.
    pub fn fault_limits(&self) -> FaultLimits {
        FaultLimits {
            start: to_duration(self.start_seconds),
            heartbeat: to_duration(self.heartbeat_seconds),
            stall: to_duration(self.stall_seconds),
            blame: BLAME_LIMIT,
            exit: EXIT_LIMIT,
        }
    }

    /// How long workers may take to stop.
    pub fn grace_period(&self) -> Duration {
        to_duration(self.grace_seconds)
    }
}

fn to_duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
