//! Hang detection: ranks without heartbeats, and ranks with heartbeats that make no step.

use super::fault::{Fault, FaultCause};
use super::messages::WorkerActivity;
use super::rank_status::{FaultLimits, RankStatus};

/// The first rank that never sent a heartbeat, or has sent none for too long.
pub fn find_silent_rank(ranks: &[RankStatus], limits: &FaultLimits) -> Option<Fault> {
    let mut running = ranks.iter().enumerate().filter(|(_, status)| status.exit.is_none());
    running.find_map(|(rank, status)| {
        let cause = match status.since_heartbeat {
            None if status.since_start > limits.start => FaultCause::NeverStarted(status.since_start),
            Some(silent) if silent > limits.heartbeat => FaultCause::Silent(silent),
            _ => return None,
        };
        Some(Fault { rank, cause })
    })
}

/// The rank that holds up all others, once all ranks that are not done have made no step for too
/// long. Ranks step together, so the one to name is the one that does something other than waiting
/// in a step for the others.
pub fn find_stalled_rank(ranks: &[RankStatus], limits: &FaultLimits) -> Option<Fault> {
    if !ranks.iter().all(|status| is_stalled(status, limits) || status.is_done(limits)) {
        return None;
    }
    let stalled = || ranks.iter().enumerate().filter(|(_, status)| is_stalled(status, limits));
    let outside_step = stalled().find(|(_, status)| status.activity != WorkerActivity::Step);
    let (rank, status) = outside_step.or_else(|| stalled().next())?;
    Some(Fault { rank, cause: FaultCause::Stalled(status.activity, status.since_step) })
}

/// Whether the rank's process is alive, has sent a heartbeat and has made no step for too long.
fn is_stalled(status: &RankStatus, limits: &FaultLimits) -> bool {
    status.exit.is_none() && status.since_heartbeat.is_some() && status.since_step > limits.stall
}
