//! Fault detection: whether a rank is at fault, and which one. A pure function of what the
//! supervisor knows of the ranks.

use std::time::Duration;

use super::fault::{Fault, FaultCause};
use super::hang_detection::{find_silent_rank, find_stalled_rank};
use super::messages::TrainingEnd;
use super::rank_status::{FaultLimits, ProcessExit, RankStatus};

/// What the state of all ranks means for the worker group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All ranks work, or it is too early to name the rank at fault.
    Wait,
    /// All ranks have ended well.
    Done,
    /// A rank is at fault, and the others cannot continue.
    Fault(Fault),
}

/// Judges the ranks of one worker group.
pub fn detect_fault(ranks: &[RankStatus], limits: &FaultLimits) -> Verdict {
    if ranks.iter().all(|status| status.is_done(limits)) {
        return match ranks.iter().position(|status| reported_end(status) == Some(TrainingEnd::Stopped)) {
            Some(rank) => Verdict::Fault(Fault { rank, cause: FaultCause::Reclaimed }),
            None => Verdict::Done,
        };
    }
    let lost_peers = find_rank_without_peers(ranks, limits);
    // Once a rank has lost the others for some time, a rank that reported its own failure is at
    // fault, even if its process has not exited yet.
    let exit_limit = if lost_peers.is_some() { Duration::ZERO } else { limits.exit };
    find_failed_rank(ranks, exit_limit)
        .or_else(|| find_silent_rank(ranks, limits))
        .or(lost_peers)
        .or_else(|| find_stalled_rank(ranks, limits))
        .map_or(Verdict::Wait, Verdict::Fault)
}

fn reported_end(status: &RankStatus) -> Option<TrainingEnd> {
    status.end.as_ref().map(|(end, _)| end.clone())
}

/// The first rank that lost the others longer ago than the blame limit.
fn find_rank_without_peers(ranks: &[RankStatus], limits: &FaultLimits) -> Option<Fault> {
    ranks.iter().enumerate().find_map(|(rank, status)| {
        let (since, message) = status.lost_peers()?;
        (since > limits.blame).then(|| Fault { rank, cause: FaultCause::LostPeers(message.into()) })
    })
}

/// The rank whose process failed for a reason of its own. Ranks that only lost the others are not
/// named. A rank that was killed comes first, because the others may not know what happened to it.
fn find_failed_rank(ranks: &[RankStatus], exit_limit: Duration) -> Option<Fault> {
    let failed = || {
        let ranks = ranks.iter().enumerate();
        ranks.filter_map(|(rank, status)| Some((rank, status.failure(exit_limit)?, reported_end(status))))
    };
    let killed = failed().find_map(|(rank, exit, _)| match exit {
        ProcessExit::Signal(signal) => Some(Fault { rank, cause: FaultCause::Killed(signal) }),
        ProcessExit::Code(_) => None,
    });
    killed.or_else(|| failed().find_map(|(rank, exit, end)| failure_to_fault(rank, exit, end)))
}

/// The fault of a rank that failed by itself. `None` if it only lost the others.
fn failure_to_fault(rank: usize, exit: ProcessExit, end: Option<TrainingEnd>) -> Option<Fault> {
    let (rank, cause) = match (exit, end) {
        (_, Some(TrainingEnd::Straggler { rank, message })) => (rank, FaultCause::Straggler(message)),
        (_, Some(TrainingEnd::Overtaken(message))) => (rank, FaultCause::Overtaken(message)),
        (_, Some(TrainingEnd::Refused(message))) => (rank, FaultCause::Refused(message)),
        (_, Some(TrainingEnd::Failed(message))) => (rank, FaultCause::Failed(message)),
        (ProcessExit::Code(code), None) => {
            (rank, FaultCause::Failed(format!("exit code {code}; its message is above")))
        }
        _ => return None,
    };
    Some(Fault { rank, cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::messages::WorkerActivity;

    const LIMITS: FaultLimits = FaultLimits {
        start: Duration::from_secs(300),
        heartbeat: Duration::from_secs(30),
        stall: Duration::from_secs(600),
        blame: Duration::from_secs(5),
        exit: Duration::from_secs(20),
    };

    fn healthy() -> RankStatus {
        RankStatus {
            exit: None,
            end: None,
            since_heartbeat: Some(Duration::from_secs(1)),
            since_start: Duration::from_secs(1000),
            since_step: Duration::from_secs(2),
            activity: WorkerActivity::Step,
        }
    }

    fn ended(exit: ProcessExit, end: Option<TrainingEnd>) -> RankStatus {
        let end = end.map(|end| (end, seconds(1)));
        RankStatus { exit: Some((exit, seconds(1))), end, ..healthy() }
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn fault_names_the_rank_that_caused_it_and_not_its_victims() {
        let lost = || ended(ProcessExit::Code(1), Some(TrainingEnd::LostPeers("connection closed".into())));
        let long_lost = || RankStatus { exit: Some((ProcessExit::Code(1), seconds(9))), ..lost() };
        let failed = || TrainingEnd::Failed("disk full".into());
        let done = || ended(ProcessExit::Code(0), Some(TrainingEnd::Done));
        let fault = |rank, cause| Verdict::Fault(Fault { rank, cause });
        let silent = |n| RankStatus { since_heartbeat: Some(seconds(n)), ..healthy() };
        let stalled = |n, activity| RankStatus { since_step: seconds(n), activity, ..healthy() };
        let exiting = |end, n| RankStatus { end: Some((end, seconds(n))), ..healthy() };
        let not_started = |n| RankStatus { since_heartbeat: None, since_start: seconds(n), ..healthy() };
        for (ranks, expected) in [
            (vec![healthy(), healthy()], Verdict::Wait),
            (vec![done(), healthy()], Verdict::Wait),
            (vec![done(), done()], Verdict::Done),
            (vec![lost(), ended(ProcessExit::Signal(9), None)], fault(1, FaultCause::Killed(9))),
            (
                vec![ended(ProcessExit::Code(1), Some(failed())), ended(ProcessExit::Signal(9), None)],
                fault(1, FaultCause::Killed(9)),
            ),
            (
                vec![lost(), ended(ProcessExit::Code(1), Some(failed()))],
                fault(1, FaultCause::Failed("disk full".into())),
            ),
            (
                vec![lost(), ended(ProcessExit::Code(2), Some(TrainingEnd::Refused("no file".into())))],
                fault(1, FaultCause::Refused("no file".into())),
            ),
            (
                vec![lost(), ended(ProcessExit::Code(2), Some(TrainingEnd::Overtaken("by 7".into())))],
                fault(1, FaultCause::Overtaken("by 7".into())),
            ),
            (vec![lost(), healthy()], Verdict::Wait),
            // The rank has reported its end, and its process hangs.
            (vec![exiting(failed(), 19), healthy()], Verdict::Wait),
            (vec![exiting(failed(), 21), healthy()], fault(0, FaultCause::Failed("disk full".into()))),
            (
                vec![exiting(failed(), 21), ended(ProcessExit::Signal(9), None)],
                fault(1, FaultCause::Killed(9)),
            ),
            (
                vec![exiting(TrainingEnd::LostPeers("gone".into()), 21), healthy()],
                fault(0, FaultCause::LostPeers("gone".into())),
            ),
            (vec![exiting(failed(), 4), lost()], Verdict::Wait),
            (vec![exiting(failed(), 9), long_lost()], fault(0, FaultCause::Failed("disk full".into()))),
            (
                vec![exiting(TrainingEnd::Refused("no file".into()), 9), long_lost()],
                fault(0, FaultCause::Refused("no file".into())),
            ),
            // Errors during clean-up, after all is done.
            (vec![done(), ended(ProcessExit::Signal(6), Some(TrainingEnd::Done))], Verdict::Done),
            (vec![done(), ended(ProcessExit::Code(1), Some(TrainingEnd::Done))], Verdict::Done),
            (vec![done(), exiting(TrainingEnd::Done, 19)], Verdict::Wait),
            (vec![done(), exiting(TrainingEnd::Done, 21)], Verdict::Done),
            (vec![healthy(), exiting(TrainingEnd::Done, 21)], Verdict::Wait),
            (
                vec![exiting(TrainingEnd::Stopped, 21), exiting(TrainingEnd::Stopped, 21)],
                fault(0, FaultCause::Reclaimed),
            ),
            (vec![long_lost(), healthy()], fault(0, FaultCause::LostPeers("connection closed".into()))),
            (vec![long_lost(), silent(31)], fault(1, FaultCause::Silent(seconds(31)))),
            (vec![healthy(), silent(29)], Verdict::Wait),
            (vec![healthy(), silent(31)], fault(1, FaultCause::Silent(seconds(31)))),
            (vec![healthy(), not_started(299)], Verdict::Wait),
            (vec![healthy(), not_started(301)], fault(1, FaultCause::NeverStarted(seconds(301)))),
            (vec![stalled(700, WorkerActivity::Step), stalled(500, WorkerActivity::Data)], Verdict::Wait),
            (
                vec![stalled(700, WorkerActivity::Step), stalled(701, WorkerActivity::Data)],
                fault(1, FaultCause::Stalled(WorkerActivity::Data, seconds(701))),
            ),
            // The other rank has ended, and the first one's last checkpoint never completes.
            (
                vec![stalled(701, WorkerActivity::End), done()],
                fault(0, FaultCause::Stalled(WorkerActivity::End, seconds(701))),
            ),
            (
                vec![
                    lost(),
                    ended(
                        ProcessExit::Code(1),
                        Some(TrainingEnd::Straggler { rank: 0, message: "slow".into() }),
                    ),
                ],
                fault(0, FaultCause::Straggler("slow".into())),
            ),
            (
                vec![
                    ended(ProcessExit::Code(0), Some(TrainingEnd::Stopped)),
                    ended(ProcessExit::Code(0), Some(TrainingEnd::Stopped)),
                ],
                fault(0, FaultCause::Reclaimed),
            ),
        ] {
            assert_eq!(detect_fault(&ranks, &LIMITS), expected, "{ranks:?}");
        }
    }
}
