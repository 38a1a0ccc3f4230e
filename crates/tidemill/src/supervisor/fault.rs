//! What the supervisor makes of what it sees of ranks: whether one is at fault, and which. A pure decision, without processes or
//! clocks.

use std::fmt;
use std::time::Duration;

use super::messages::{Doing, Ended};

/// How long is too long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From the start of a process to its first heartbeat.
    pub start: Duration,
    /// Without a heartbeat.
    pub heartbeat: Duration,
    /// With heartbeats, but without a step.
    pub stall: Duration,
    /// From the first failed rank, until another may say that the fault is its own.
    pub blame: Duration,
    /// From what a process says of its end to the end.
    pub leave: Duration,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// What is known of a rank.
#[derive(Debug, Clone)]
pub struct RankView {
    /// How its process ended, and how long ago.
    pub exit: Option<(Exit, Duration)>,
    /// What it said of that, and how long ago.
    pub ended: Option<(Ended, Duration)>,
    /// Time since its last heartbeat; none before the first.
    pub silent: Option<Duration>,
    /// Time since it was started.
    pub age: Duration,
    /// Time since its last step, or since its first heartbeat.
    pub idle: Duration,
    /// What it last said it does.
    pub doing: Doing,
}

impl RankView {
    /// Whether it has done all that it should, as far as others have. Its process may wait for them before it goes, but not for ever
    /// when all are done; and what becomes of it in its clean-up does not matter any more.
    fn is_done(&self, limits: &Limits) -> bool {
        match (&self.exit, &self.ended) {
            (Some(_), Some((Ended::Done | Ended::Stopped, _))) => true,
            (Some((exit, _)), _) => *exit == Exit::Code(0),
            (None, Some((Ended::Done | Ended::Stopped, ago))) => *ago > limits.leave,
            (None, None | Some(_)) => false,
        }
    }

    /// How its process failed, if it did: one that hangs in its clean-up (a thread, a communicator) after so long has failed as it says.
    fn failure(&self, leave: Duration) -> Option<Exit> {
        match (self.exit, &self.ended) {
            (_, Some((Ended::Done | Ended::Stopped, _))) | (Some((Exit::Code(0), _)), _) => None,
            (Some((exit, _)), _) => Some(exit),
            (None, said) => said.as_ref().filter(|(_, ago)| *ago > leave).map(|_| Exit::Code(1)),
        }
    }

    /// For how long it has had nobody to train with, if that is all that it says.
    fn alone(&self) -> Option<(Duration, &str)> {
        match &self.ended {
            Some((Ended::LostPeers(message), said)) => {
                Some((self.exit.map_or(*said, |(_, ago)| ago), message))
            }
            _ => None,
        }
    }

    /// Whether it lives and makes no step.
    fn is_stalled(&self, limits: &Limits) -> bool {
        self.exit.is_none() && self.silent.is_some() && self.idle > limits.stall
    }
}

/// What is wrong with a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// A signal that nobody here has sent.
    Killed(i32),
    /// An error of its own.
    Failed(String),
    /// Input that no restart makes better.
    Refused(String),
    /// Another process trains the run.
    Overtaken(String),
    /// It is too slow to take part.
    Straggler(String),
    /// The system took its machine or process back; it has written a checkpoint first.
    Reclaimed,
    /// No heartbeat: the process is stopped, or its machine is.
    Silent(Duration),
    /// No step, though the process lives.
    Stalled(Doing, Duration),
    /// It never came up.
    NeverStarted(Duration),
    /// It lost the others, and none of them is at fault: the network between them is.
    LostPeers(String),
}

/// A rank's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Which rank.
    pub rank: usize,
    /// What is wrong with it.
    pub cause: Cause,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, cause } = self;
        match cause {
            Cause::Killed(9) => write!(f, "rank {rank} was killed (signal 9; by hand, or for memory)"),
            Cause::Killed(signal) => write!(f, "rank {rank} died of signal {signal}"),
            Cause::Failed(message) | Cause::Refused(message) => write!(f, "rank {rank} failed: {message}"),
            Cause::Straggler(message) | Cause::Overtaken(message) => f.write_str(message),
            Cause::Reclaimed => write!(f, "rank {rank} was told to go"),
            Cause::Silent(time) => write!(f, "rank {rank} hangs: no heartbeat for {} s", time.as_secs()),
            Cause::Stalled(doing, time) => {
                write!(f, "rank {rank} has made no step for {} s; it {doing}", time.as_secs())
            }
            Cause::NeverStarted(time) => write!(f, "rank {rank} did not come up in {} s", time.as_secs()),
            Cause::LostPeers(message) => write!(f, "rank {rank} lost the others, which live: {message}"),
        }
    }
}

/// What to make of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All is well, or not clear yet.
    Wait,
    /// All have ended well.
    Done,
    /// One is at fault, and the others cannot go on.
    Fault(Fault),
}

/// Judges the ranks of one start.
pub fn judge(ranks: &[RankView], limits: &Limits) -> Verdict {
    let fault = |rank, cause| Verdict::Fault(Fault { rank, cause });
    let how = |rank: &RankView| rank.ended.as_ref().map(|(how, _)| how.clone());
    if ranks.iter().all(|rank| rank.is_done(limits)) {
        return match ranks.iter().position(|rank| how(rank) == Some(Ended::Stopped)) {
            Some(rank) => fault(rank, Cause::Reclaimed),
            None => Verdict::Done,
        };
    }
    // Those who died of something of their own come before those who only lost the others, and a rank that was killed before
    // any that may not know what has hit it. Once others have lost one that has said what is wrong with it, it is that.
    let alone = || ranks.iter().enumerate().filter_map(|(i, rank)| Some((i, rank.alone()?)));
    let lost = alone().find(|(_, (ago, _))| *ago > limits.blame);
    let leave = if lost.is_some() { Duration::ZERO } else { limits.leave };
    let failed =
        || ranks.iter().enumerate().filter_map(|(i, rank)| Some((i, rank.failure(leave)?, how(rank))));
    for (i, exit, _) in failed() {
        if let Exit::Signal(signal) = exit {
            return fault(i, Cause::Killed(signal));
        }
    }
    for (i, exit, how) in failed() {
        return match (exit, how) {
            (_, Some(Ended::Straggler { rank, message })) => fault(rank, Cause::Straggler(message)),
            (_, Some(Ended::Overtaken(message))) => fault(i, Cause::Overtaken(message)),
            (_, Some(Ended::Refused(message))) => fault(i, Cause::Refused(message)),
            (_, Some(Ended::Failed(message))) => fault(i, Cause::Failed(message)),
            (Exit::Code(code), None) => {
                fault(i, Cause::Failed(format!("exit code {code}; its message is above")))
            }
            _ => continue,
        };
    }
    for (i, rank) in ranks.iter().enumerate().filter(|(_, rank)| rank.exit.is_none()) {
        match rank.silent {
            None if rank.age > limits.start => return fault(i, Cause::NeverStarted(rank.age)),
            Some(silent) if silent > limits.heartbeat => return fault(i, Cause::Silent(silent)),
            _ => (),
        }
    }
    if let Some((i, (_, message))) = lost {
        return fault(i, Cause::LostPeers(message.into()));
    }
    // Ranks step together. The one to name is the one that does something else than waiting for others.
    if !ranks.iter().all(|rank| rank.is_stalled(limits) || rank.is_done(limits)) {
        return Verdict::Wait;
    }
    let stalled = || ranks.iter().enumerate().filter(|(_, rank)| rank.is_stalled(limits));
    match stalled().find(|(_, rank)| rank.doing != Doing::Step).or_else(|| stalled().next()) {
        Some((i, rank)) => fault(i, Cause::Stalled(rank.doing, rank.idle)),
        None => Verdict::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        start: Duration::from_secs(300),
        heartbeat: Duration::from_secs(30),
        stall: Duration::from_secs(600),
        blame: Duration::from_secs(5),
        leave: Duration::from_secs(20),
    };

    fn healthy() -> RankView {
        RankView {
            exit: None,
            ended: None,
            silent: Some(Duration::from_secs(1)),
            age: Duration::from_secs(1000),
            idle: Duration::from_secs(2),
            doing: Doing::Step,
        }
    }

    fn ended(exit: Exit, ended: Option<Ended>) -> RankView {
        let ended = ended.map(|how| (how, seconds(1)));
        RankView { exit: Some((exit, seconds(1))), ended, ..healthy() }
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_rank_at_fault_is_named_and_not_those_who_suffer() {
        let lost = || ended(Exit::Code(1), Some(Ended::LostPeers("connection closed".into())));
        let long_lost = || RankView { exit: Some((Exit::Code(1), seconds(9))), ..lost() };
        let failed = || Ended::Failed("disk full".into());
        let done = || ended(Exit::Code(0), Some(Ended::Done));
        let fault = |rank, cause| Verdict::Fault(Fault { rank, cause });
        let silent = |n| RankView { silent: Some(seconds(n)), ..healthy() };
        let idle = |n, doing| RankView { idle: seconds(n), doing, ..healthy() };
        let leaving = |how, n| RankView { ended: Some((how, seconds(n))), ..healthy() };
        let unborn = |age| RankView { silent: None, age: seconds(age), ..healthy() };
        for (ranks, expected) in [
            (vec![healthy(), healthy()], Verdict::Wait),
            (vec![done(), healthy()], Verdict::Wait),
            (vec![done(), done()], Verdict::Done),
            (vec![lost(), ended(Exit::Signal(9), None)], fault(1, Cause::Killed(9))),
            (
                vec![ended(Exit::Code(1), Some(failed())), ended(Exit::Signal(9), None)],
                fault(1, Cause::Killed(9)),
            ),
            (vec![lost(), ended(Exit::Code(1), Some(failed()))], fault(1, Cause::Failed("disk full".into()))),
            (
                vec![lost(), ended(Exit::Code(2), Some(Ended::Refused("no file".into())))],
                fault(1, Cause::Refused("no file".into())),
            ),
            (
                vec![lost(), ended(Exit::Code(2), Some(Ended::Overtaken("by 7".into())))],
                fault(1, Cause::Overtaken("by 7".into())),
            ),
            (vec![lost(), healthy()], Verdict::Wait),
            // It has said how it ended, and its process hangs.
            (vec![leaving(failed(), 19), healthy()], Verdict::Wait),
            (vec![leaving(failed(), 21), healthy()], fault(0, Cause::Failed("disk full".into()))),
            (vec![leaving(failed(), 21), ended(Exit::Signal(9), None)], fault(1, Cause::Killed(9))),
            (
                vec![leaving(Ended::LostPeers("gone".into()), 21), healthy()],
                fault(0, Cause::LostPeers("gone".into())),
            ),
            (vec![leaving(failed(), 4), lost()], Verdict::Wait),
            (vec![leaving(failed(), 9), long_lost()], fault(0, Cause::Failed("disk full".into()))),
            (
                vec![leaving(Ended::Refused("no file".into()), 9), long_lost()],
                fault(0, Cause::Refused("no file".into())),
            ),
            // What becomes of processes when all is done.
            (vec![done(), ended(Exit::Signal(6), Some(Ended::Done))], Verdict::Done),
            (vec![done(), ended(Exit::Code(1), Some(Ended::Done))], Verdict::Done),
            (vec![done(), leaving(Ended::Done, 19)], Verdict::Wait),
            (vec![done(), leaving(Ended::Done, 21)], Verdict::Done),
            (vec![healthy(), leaving(Ended::Done, 21)], Verdict::Wait),
            (vec![leaving(Ended::Stopped, 21), leaving(Ended::Stopped, 21)], fault(0, Cause::Reclaimed)),
            (vec![long_lost(), healthy()], fault(0, Cause::LostPeers("connection closed".into()))),
            (vec![long_lost(), silent(31)], fault(1, Cause::Silent(seconds(31)))),
            (vec![healthy(), silent(29)], Verdict::Wait),
            (vec![healthy(), silent(31)], fault(1, Cause::Silent(seconds(31)))),
            (vec![healthy(), unborn(299)], Verdict::Wait),
            (vec![healthy(), unborn(301)], fault(1, Cause::NeverStarted(seconds(301)))),
            (vec![idle(700, Doing::Step), idle(500, Doing::Data)], Verdict::Wait),
            (
                vec![idle(700, Doing::Step), idle(701, Doing::Data)],
                fault(1, Cause::Stalled(Doing::Data, seconds(701))),
            ),
            // The others have ended, and the first one's last checkpoint does not come to an end.
            (vec![idle(701, Doing::End), done()], fault(0, Cause::Stalled(Doing::End, seconds(701)))),
            (
                vec![
                    lost(),
                    ended(Exit::Code(1), Some(Ended::Straggler { rank: 0, message: "slow".into() })),
                ],
                fault(0, Cause::Straggler("slow".into())),
            ),
            (
                vec![ended(Exit::Code(0), Some(Ended::Stopped)), ended(Exit::Code(0), Some(Ended::Stopped))],
                fault(0, Cause::Reclaimed),
            ),
        ] {
            assert_eq!(judge(&ranks, &LIMITS), expected, "{ranks:?}");
        }
    }
}
