//! What the supervisor makes of what it sees: whether a rank is at fault, and whether to start again. Pure decisions, without
//! processes or clocks.

use std::fmt;
use std::ops::RangeInclusive;
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
    /// What it said of that.
    pub ended: Option<Ended>,
    /// Time since its last heartbeat; none before the first.
    pub silent: Option<Duration>,
    /// Time since it was started.
    pub age: Duration,
    /// Time since its last step, or since its first heartbeat.
    pub idle: Duration,
    /// What it last said it does.
    pub doing: Doing,
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
    if ranks.iter().all(|rank| matches!(rank.exit, Some((Exit::Code(0), _)))) {
        return match ranks.iter().position(|rank| rank.ended == Some(Ended::Stopped)) {
            Some(rank) => fault(rank, Cause::Reclaimed),
            None => Verdict::Done,
        };
    }
    // Those who died of something of their own come before those who only lost the others, and a rank that was killed before
    // any that may not know what has hit it.
    let killed = ranks.iter().enumerate().find_map(|(i, rank)| match rank.exit {
        Some((Exit::Signal(signal), _)) => Some((i, signal)),
        _ => None,
    });
    if let Some((i, signal)) = killed {
        return fault(i, Cause::Killed(signal));
    }
    for (i, rank) in ranks.iter().enumerate() {
        match (&rank.exit, &rank.ended) {
            (Some(_), Some(Ended::Straggler { rank, message })) => {
                return fault(*rank, Cause::Straggler(message.clone()));
            }
            (Some(_), Some(Ended::Overtaken(message))) => {
                return fault(i, Cause::Overtaken(message.clone()));
            }
            (Some((Exit::Code(2), _)), Some(Ended::Failed(message))) => {
                return fault(i, Cause::Refused(message.clone()));
            }
            (Some((Exit::Code(code), _)), Some(Ended::Failed(message))) if *code != 0 => {
                return fault(i, Cause::Failed(message.clone()));
            }
            (Some((Exit::Code(code), _)), None) if *code != 0 => {
                return fault(i, Cause::Failed(format!("exit code {code}; its message is above")));
            }
            _ => (),
        }
    }
    for (i, rank) in ranks.iter().enumerate().filter(|(_, rank)| rank.exit.is_none()) {
        match rank.silent {
            None if rank.age > limits.start => return fault(i, Cause::NeverStarted(rank.age)),
            Some(silent) if silent > limits.heartbeat => return fault(i, Cause::Silent(silent)),
            _ => (),
        }
    }
    let lost = ranks.iter().enumerate().find_map(|(i, rank)| match (&rank.exit, &rank.ended) {
        (Some((_, ago)), Some(Ended::LostPeers(message))) if *ago > limits.blame => Some((i, message)),
        _ => None,
    });
    if let Some((rank, message)) = lost {
        return fault(rank, Cause::LostPeers(message.clone()));
    }
    // Ranks step together. The one to name is the one that does something else than waiting for others.
    let living = || ranks.iter().enumerate().filter(|(_, rank)| rank.exit.is_none() && rank.silent.is_some());
    let stalled = living().count() == ranks.len() && living().all(|(_, rank)| rank.idle > limits.stall);
    let named = living().find(|(_, rank)| rank.doing != Doing::Step).or_else(|| living().next());
    match named.filter(|_| stalled) {
        Some((i, rank)) => fault(i, Cause::Stalled(rank.doing, rank.idle)),
        None => Verdict::Wait,
    }
}

/// A fault, and how far the run had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// What went wrong.
    pub fault: Fault,
    /// Where the rank at fault ran: which of the places that workers may have, which on a machine with GPUs is which GPU.
    pub place: usize,
    /// The last step that any rank had made.
    pub step: u64,
    /// The last step with a checkpoint.
    pub committed: u64,
    /// Whether these workers had made any step themselves.
    pub stepped: bool,
}

/// What to do after a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Start workers in these places after a pause.
    Restart { places: Vec<usize>, pause: Duration },
    /// It would not help.
    GiveUp(String),
    /// It would not help, for what the workers were given makes no sense.
    Refuse(String),
}

/// Faults that may come one after the other without a new checkpoint between them.
const PATIENCE: usize = 20;

/// Faults of one place among those after which it is left out, until there is a new checkpoint.
const REPEATED: usize = 3;

/// The first pause, for an error that may go away; each that follows is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What to do after `incidents`, the last of which has just happened, with so many workers allowed.
pub fn next(incidents: &[Incident], allowed: &RangeInclusive<usize>) -> Next {
    let all = || (0..*allowed.end()).collect();
    let Some(last) = incidents.last() else { return Next::Restart { places: all(), pause: Duration::ZERO } };
    // To start again would take the run back, and the other would do the same.
    if let Cause::Overtaken(message) = &last.fault.cause {
        return Next::Refuse(message.clone());
    }
    // Input that made a step before makes sense; then what refuses it now is a store that cannot be reached, or the like.
    let begun = incidents.iter().any(|incident| incident.step > 0);
    if let Cause::Refused(message) = &last.fault.cause
        && !incidents.iter().any(|incident| incident.stepped)
    {
        return Next::Refuse(message.clone());
    }
    let since: Vec<&Incident> =
        incidents.iter().rev().take_while(|incident| incident.committed == last.committed).collect();
    // An error that comes again in the same step is not going to go away. One before any step may, if the run has begun.
    let same = |before: &&Incident| before.step == last.step && before.fault.cause == last.fault.cause;
    if let Cause::Failed(message) | Cause::Refused(message) = &last.fault.cause
        && (last.step > last.committed || !begun)
        && since[1..].iter().any(same)
    {
        return Next::GiveUp(format!("after step {} it failed twice in the same way: {message}", last.step));
    }
    if since.len() > PATIENCE {
        return Next::GiveUp(format!("{} ({} faults without a new checkpoint)", last.fault, since.len()));
    }
    let slow = |place: usize| {
        incidents.iter().any(|s| s.place == place && matches!(s.fault.cause, Cause::Straggler(_)))
    };
    let fit: Vec<usize> = (0..*allowed.end()).filter(|place| !slow(*place)).collect();
    if fit.len() < *allowed.start() {
        return Next::GiveUp(format!("{}; without it there are too few workers", last.fault));
    }
    let repeated = |place: usize| since.iter().filter(|s| s.place == place).count() >= REPEATED;
    let reliable: Vec<usize> = fit.iter().copied().filter(|place| !repeated(*place)).collect();
    let places = if reliable.len() < *allowed.start() { fit } else { reliable };
    Next::Restart { places, pause: pause(&since) }
}

/// How long to wait before the next start. What kills a process from outside has been and gone; an error may take its time.
fn pause(since: &[&Incident]) -> Duration {
    let from_outside = |incident: &&&Incident| {
        matches!(incident.fault.cause, Cause::Killed(_) | Cause::Reclaimed | Cause::Straggler(_))
    };
    match since.iter().take_while(|incident| !from_outside(incident)).count() as u32 {
        0 => Duration::ZERO,
        errors => LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow((errors - 1).min(10))),
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
        RankView { exit: Some((exit, Duration::from_secs(1))), ended, ..healthy() }
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
                vec![lost(), ended(Exit::Code(2), Some(failed()))],
                fault(1, Cause::Refused("disk full".into())),
            ),
            (
                vec![lost(), ended(Exit::Code(2), Some(Ended::Overtaken("by 7".into())))],
                fault(1, Cause::Overtaken("by 7".into())),
            ),
            (vec![lost(), healthy()], Verdict::Wait),
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

    fn incident(rank: usize, cause: Cause, step: u64, committed: u64) -> Incident {
        Incident { fault: Fault { rank, cause }, place: rank, step, committed, stepped: step > committed }
    }

    fn restart(places: impl IntoIterator<Item = usize>, pause: u64) -> Next {
        Next::Restart { places: places.into_iter().collect(), pause: seconds(pause) }
    }

    #[test]
    fn a_run_is_started_again_unless_that_cannot_help() {
        let killed = |rank, step, committed| incident(rank, Cause::Killed(9), step, committed);
        let failed = |step, committed| incident(0, Cause::Failed("no".into()), step, committed);
        let refused = |step, committed| incident(1, Cause::Refused("bad".into()), step, committed);
        for (incidents, expected) in [
            (vec![killed(0, 7, 0)], restart(0..4, 0)),
            (vec![killed(0, 7, 0), killed(1, 15, 10)], restart(0..4, 0)),
            (vec![failed(7, 0)], restart(0..4, 1)),
            (vec![failed(6, 0), failed(7, 0)], restart(0..4, 2)),
            (vec![failed(7, 0), failed(17, 10)], restart(0..4, 1)),
            (
                vec![failed(7, 0), failed(7, 0)],
                Next::GiveUp("after step 7 it failed twice in the same way: no".into()),
            ),
            (vec![refused(0, 0)], Next::Refuse("bad".into())),
            (
                vec![failed(0, 0), failed(0, 0)],
                Next::GiveUp("after step 0 it failed twice in the same way: no".into()),
            ),
            // A store that cannot be reached while a run that has begun is started again.
            (vec![killed(1, 15, 10), failed(10, 10), failed(10, 10)], restart(0..4, 2)),
            (vec![killed(0, 15, 10), refused(10, 10)], restart(0..4, 1)),
            // What is refused in a step: there is no checkpoint to go back to, say.
            (
                vec![refused(4, 0), refused(4, 0)],
                Next::GiveUp("after step 4 it failed twice in the same way: bad".into()),
            ),
            // Bad input to a run that has checkpoints, before it goes on.
            (vec![refused(10, 10)], Next::Refuse("bad".into())),
            (
                vec![killed(1, 15, 10), incident(0, Cause::Overtaken("by 7".into()), 25, 20)],
                Next::Refuse("by 7".into()),
            ),
        ] {
            assert_eq!(next(&incidents, &(2..=4)), expected, "{incidents:?}");
        }
        let many: Vec<Incident> = (0..21).map(|i| killed(i % 4, 5, 0)).collect();
        assert_eq!(next(&many[..20], &(4..=4)), restart(0..4, 0));
        assert!(matches!(next(&many, &(4..=4)), Next::GiveUp(_)));
    }

    #[test]
    fn a_place_that_fails_again_and_again_is_left_out_for_a_while() {
        let killed = |place, committed| incident(place, Cause::Killed(9), 5, committed);
        let mut incidents = vec![killed(1, 0), killed(1, 0)];
        assert_eq!(next(&incidents, &(2..=4)), restart(0..4, 0));
        incidents.push(killed(1, 0));
        assert_eq!(next(&incidents, &(2..=4)), restart([0, 2, 3], 0));
        assert_eq!(next(&incidents, &(4..=4)), restart(0..4, 0), "if that is allowed");
        incidents.push(killed(0, 10));
        assert_eq!(next(&incidents, &(2..=4)), restart(0..4, 0), "all are tried again");
    }

    #[test]
    fn a_place_that_is_too_slow_is_left_out_for_good() {
        let slow = |place| incident(place, Cause::Straggler("slow".into()), 0, 0);
        let mut incidents = vec![slow(0)];
        assert_eq!(next(&incidents, &(2..=3)), restart([1, 2], 0));
        incidents.push(incident(1, Cause::Killed(9), 15, 10));
        assert_eq!(next(&incidents, &(2..=3)), restart([1, 2], 0));
        incidents.push(slow(2));
        assert_eq!(
            next(&incidents, &(2..=3)),
            Next::GiveUp("slow; without it there are too few workers".into())
        );
    }
}
