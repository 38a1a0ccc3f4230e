//! `[supervisor]` of the run file: how long is too long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::Limits;

/// `[supervisor]`: when `tidemill train --workers` takes a worker for lost. All times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SupervisorConfig {
    /// From the start of a worker to its first heartbeat.
    pub start_seconds: f64,
    /// Without a heartbeat.
    pub heartbeat_seconds: f64,
    /// With heartbeats, but without a step. The first step takes longest, as does waiting for data.
    pub stall_seconds: f64,
    /// From the wish to stop until all workers have saved their state and ended.
    pub grace_seconds: f64,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self { start_seconds: 600.0, heartbeat_seconds: 30.0, stall_seconds: 1800.0, grace_seconds: 120.0 }
    }
}

/// From the first failed rank, until another may say that the fault is its own.
const BLAME: Duration = Duration::from_secs(5);

/// From what a process says of its end to the end.
const LEAVE: Duration = Duration::from_secs(20);

impl SupervisorConfig {
    /// Refuses times that are none.
    ///
    /// # Errors
    /// The key, and what it must be.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        for (key, seconds) in [
            ("supervisor.start_seconds", self.start_seconds),
            ("supervisor.heartbeat_seconds", self.heartbeat_seconds),
            ("supervisor.stall_seconds", self.stall_seconds),
            ("supervisor.grace_seconds", self.grace_seconds),
        ] {
            // Heartbeats come five times a second, and machines that are busy are late.
            if !(seconds >= 1.0 && seconds.is_finite()) {
                return Err((key, format!("{seconds} must be a number of seconds, at least 1")));
            }
        }
        Ok(())
    }

    /// The limits by which ranks are judged.
    pub fn limits(&self) -> Limits {
        Limits {
            start: seconds(self.start_seconds),
            heartbeat: seconds(self.heartbeat_seconds),
            stall: seconds(self.stall_seconds),
            blame: BLAME,
            leave: LEAVE,
        }
    }

    /// How long workers may take to stop.
    pub fn grace(&self) -> Duration {
        seconds(self.grace_seconds)
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
