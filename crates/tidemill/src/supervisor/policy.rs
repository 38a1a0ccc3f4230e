//! What the supervisor does about faults: whether to start again, with which workers, and when. A pure decision, without processes
//! or clocks.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::fault::{Cause, Fault};

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
    // Ranks of one machine that lose each other before they have made a step do not find each other.
    let apart =
        |incident: &&Incident| matches!(incident.fault.cause, Cause::LostPeers(_)) && !incident.stepped;
    if incidents.iter().rev().take_while(apart).count() >= REPEATED {
        return Next::GiveUp(format!("{}; so it was {REPEATED} times, before any step", last.fault));
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

    fn incident(rank: usize, cause: Cause, step: u64, committed: u64) -> Incident {
        Incident { fault: Fault { rank, cause }, place: rank, step, committed, stepped: step > committed }
    }

    fn restart(places: impl IntoIterator<Item = usize>, pause: u64) -> Next {
        Next::Restart { places: places.into_iter().collect(), pause: Duration::from_secs(pause) }
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
        // Nor do ranks find each other that did not before; those that have made steps may.
        let lost = |rank, step| incident(rank, Cause::LostPeers("no route".into()), step, 0);
        let mut apart = vec![lost(0, 7), lost(1, 0), lost(2, 0)];
        assert_eq!(next(&apart, &(2..=4)), restart(0..4, 4));
        apart.push(lost(3, 0));
        assert!(matches!(next(&apart, &(2..=4)), Next::GiveUp(_)));
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
