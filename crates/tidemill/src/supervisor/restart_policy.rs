//! Restart policy: what the supervisor does after a fault: restart or give up, with which workers,
//! and when. A pure function of the faults so far, without processes or clocks.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::fault::{Fault, FaultCause};

/// A fault, and how far the run was when it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// The rank at fault, and the cause.
    pub fault: Fault,
    /// The worker slot of the rank at fault. On a machine with GPUs, the slot is the number of the
    /// GPU.
    pub slot: usize,
    /// The last step that any rank had made.
    pub step: u64,
    /// The last step with a checkpoint.
    pub committed: u64,
    /// Whether this worker group had made any step itself.
    pub has_made_steps: bool,
}

/// What to do after a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Wait for `pause`, then start workers in these slots.
    Restart { slots: Vec<usize>, pause: Duration },
    /// A restart does not help, for the reason in the message.
    GiveUp(String),
    /// A restart does not help, because the input is wrong. The message says what is wrong.
    Refuse(String),
}

/// After more faults than this without a new checkpoint between them, the run ends.
const MAX_FAULTS_PER_CHECKPOINT: usize = 20;

/// After this many faults of one slot without a new checkpoint between them, the slot is left out
/// until there is one. After this many times in a row that ranks lost each other before any step,
/// the run ends.
const MAX_REPEATED_FAULTS: usize = 3;

/// The pause after the first error that may go away. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Decides what to do after `incidents`, the last of which has just happened. `allowed` is the
/// range of the number of workers; its end is the number of slots.
pub fn decide(incidents: &[Incident], allowed: &RangeInclusive<usize>) -> Decision {
    let Some(last) = incidents.last() else {
        return Decision::Restart { slots: (0..*allowed.end()).collect(), pause: Duration::ZERO };
    };
    let since_checkpoint: Vec<&Incident> =
        incidents.iter().rev().take_while(|incident| incident.committed == last.committed).collect();
    find_refusal(incidents, last)
        .or_else(|| find_reason_to_give_up(incidents, last, &since_checkpoint))
        .unwrap_or_else(|| choose_slots(incidents, last, &since_checkpoint, allowed))
}

/// Refuses a run whose input is wrong.
fn find_refusal(incidents: &[Incident], last: &Incident) -> Option<Decision> {
    match &last.fault.cause {
        // A restart would take the run over from the other process, which would do the same.
        FaultCause::Overtaken(message) => Some(Decision::Refuse(message.clone())),
        // If steps were made with an input, the input is right. If it is refused now, a store may
        // be out of reach, for example.
        FaultCause::Refused(message) if !incidents.iter().any(|incident| incident.has_made_steps) => {
            Some(Decision::Refuse(message.clone()))
        }
        _ => None,
    }
}

/// Ends a run whose fault a restart does not remove. `since_checkpoint` has the newest incident
/// first.
fn find_reason_to_give_up(
    incidents: &[Incident],
    last: &Incident,
    since_checkpoint: &[&Incident],
) -> Option<Decision> {
    // An error that repeats in the same step does not go away. An error before any step may, once
    // the run has made steps.
    let has_run_started = incidents.iter().any(|incident| incident.step > 0);
    let is_same = |other: &&Incident| other.step == last.step && other.fault.cause == last.fault.cause;
    if let FaultCause::Failed(message) | FaultCause::Refused(message) = &last.fault.cause
        && (last.step > last.committed || !has_run_started)
        && since_checkpoint[1..].iter().any(is_same)
    {
        let message = format!("after step {} it failed twice in the same way: {message}", last.step);
        return Some(Decision::GiveUp(message));
    }
    // Ranks of one machine that lose each other before the first step cannot connect at all.
    let is_without_connection = |incident: &&Incident| {
        matches!(incident.fault.cause, FaultCause::LostPeers(_)) && !incident.has_made_steps
    };
    if incidents.iter().rev().take_while(is_without_connection).count() >= MAX_REPEATED_FAULTS {
        let message = format!("{}; this happened {MAX_REPEATED_FAULTS} times before any step", last.fault);
        return Some(Decision::GiveUp(message));
    }
    if since_checkpoint.len() > MAX_FAULTS_PER_CHECKPOINT {
        let faults = since_checkpoint.len();
        return Some(Decision::GiveUp(format!("{} ({faults} faults without a new checkpoint)", last.fault)));
    }
    None
}

/// Restarts without the slots that are too slow, and without those that failed too often if enough
/// others remain.
fn choose_slots(
    incidents: &[Incident],
    last: &Incident,
    since_checkpoint: &[&Incident],
    allowed: &RangeInclusive<usize>,
) -> Decision {
    let is_too_slow = |slot: usize| {
        incidents.iter().any(|i| i.slot == slot && matches!(i.fault.cause, FaultCause::Straggler(_)))
    };
    let fast: Vec<usize> = (0..*allowed.end()).filter(|slot| !is_too_slow(*slot)).collect();
    if fast.len() < *allowed.start() {
        return Decision::GiveUp(format!("{}; without it there are too few workers", last.fault));
    }
    let is_unreliable =
        |slot: usize| since_checkpoint.iter().filter(|i| i.slot == slot).count() >= MAX_REPEATED_FAULTS;
    let reliable: Vec<usize> = fast.iter().copied().filter(|slot| !is_unreliable(*slot)).collect();
    let slots = if reliable.len() < *allowed.start() { fast } else { reliable };
    Decision::Restart { slots, pause: compute_pause(since_checkpoint) }
}

/// The pause before the next start. A cause from outside, such as a signal, is over at once. An
/// error may need time to go away: each consecutive error doubles the pause. `since_checkpoint` has
/// the newest incident first.
fn compute_pause(since_checkpoint: &[&Incident]) -> Duration {
    let is_from_outside = |incident: &&&Incident| {
        let cause = &incident.fault.cause;
        matches!(cause, FaultCause::Killed(_) | FaultCause::Reclaimed | FaultCause::Straggler(_))
    };
    match since_checkpoint.iter().take_while(|incident| !is_from_outside(incident)).count() as u32 {
        0 => Duration::ZERO,
        errors => LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow((errors - 1).min(10))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incident(rank: usize, cause: FaultCause, step: u64, committed: u64) -> Incident {
        let has_made_steps = step > committed;
        Incident { fault: Fault { rank, cause }, slot: rank, step, committed, has_made_steps }
    }

    fn restart(slots: impl IntoIterator<Item = usize>, pause: u64) -> Decision {
        Decision::Restart { slots: slots.into_iter().collect(), pause: Duration::from_secs(pause) }
    }

    #[test]
    fn run_restarts_unless_a_restart_cannot_help() {
        let killed = |rank, step, committed| incident(rank, FaultCause::Killed(9), step, committed);
        let failed = |step, committed| incident(0, FaultCause::Failed("no".into()), step, committed);
        let refused = |step, committed| incident(1, FaultCause::Refused("bad".into()), step, committed);
        for (incidents, expected) in [
            (vec![killed(0, 7, 0)], restart(0..4, 0)),
            (vec![killed(0, 7, 0), killed(1, 15, 10)], restart(0..4, 0)),
            (vec![failed(7, 0)], restart(0..4, 1)),
            (vec![failed(6, 0), failed(7, 0)], restart(0..4, 2)),
            (vec![failed(7, 0), failed(17, 10)], restart(0..4, 1)),
            (
                vec![failed(7, 0), failed(7, 0)],
                Decision::GiveUp("after step 7 it failed twice in the same way: no".into()),
            ),
            (vec![refused(0, 0)], Decision::Refuse("bad".into())),
            (
                vec![failed(0, 0), failed(0, 0)],
                Decision::GiveUp("after step 0 it failed twice in the same way: no".into()),
            ),
            // A store is out of reach while a run that has made steps restarts.
            (vec![killed(1, 15, 10), failed(10, 10), failed(10, 10)], restart(0..4, 2)),
            (vec![killed(0, 15, 10), refused(10, 10)], restart(0..4, 1)),
            // A refusal during a step, for example because there is no checkpoint to roll back to.
            (
                vec![refused(4, 0), refused(4, 0)],
                Decision::GiveUp("after step 4 it failed twice in the same way: bad".into()),
            ),
            // Bad input of a run that has checkpoints, before it makes a step.
            (vec![refused(10, 10)], Decision::Refuse("bad".into())),
            (
                vec![killed(1, 15, 10), incident(0, FaultCause::Overtaken("by 7".into()), 25, 20)],
                Decision::Refuse("by 7".into()),
            ),
        ] {
            assert_eq!(decide(&incidents, &(2..=4)), expected, "{incidents:?}");
        }
        // Ranks that cannot connect: the run ends after three times. Incident 0 does not count,
        // because it had steps.
        let lost = |rank, step| incident(rank, FaultCause::LostPeers("no route".into()), step, 0);
        let mut lost_peers = vec![lost(0, 7), lost(1, 0), lost(2, 0)];
        assert_eq!(decide(&lost_peers, &(2..=4)), restart(0..4, 4));
        lost_peers.push(lost(3, 0));
        assert!(matches!(decide(&lost_peers, &(2..=4)), Decision::GiveUp(_)));
        let many: Vec<Incident> = (0..21).map(|i| killed(i % 4, 5, 0)).collect();
        assert_eq!(decide(&many[..20], &(4..=4)), restart(0..4, 0));
        assert!(matches!(decide(&many, &(4..=4)), Decision::GiveUp(_)));
    }

    #[test]
    fn slot_with_repeated_faults_is_left_out_until_the_next_checkpoint() {
        let killed = |slot, committed| incident(slot, FaultCause::Killed(9), 5, committed);
        let mut incidents = vec![killed(1, 0), killed(1, 0)];
        assert_eq!(decide(&incidents, &(2..=4)), restart(0..4, 0));
        incidents.push(killed(1, 0));
        assert_eq!(decide(&incidents, &(2..=4)), restart([0, 2, 3], 0));
        assert_eq!(
            decide(&incidents, &(4..=4)),
            restart(0..4, 0),
            "all slots are used if fewer workers are not allowed"
        );
        incidents.push(killed(0, 10));
        assert_eq!(
            decide(&incidents, &(2..=4)),
            restart(0..4, 0),
            "all slots are used again after a checkpoint"
        );
    }

    #[test]
    fn slot_that_is_too_slow_is_left_out_for_good() {
        let slow = |slot| incident(slot, FaultCause::Straggler("slow".into()), 0, 0);
        let mut incidents = vec![slow(0)];
        assert_eq!(decide(&incidents, &(2..=3)), restart([1, 2], 0));
        incidents.push(incident(1, FaultCause::Killed(9), 15, 10));
        assert_eq!(decide(&incidents, &(2..=3)), restart([1, 2], 0));
        incidents.push(slow(2));
        assert_eq!(
            decide(&incidents, &(2..=3)),
            Decision::GiveUp("slow; without it there are too few workers".into())
        );
    }
}
