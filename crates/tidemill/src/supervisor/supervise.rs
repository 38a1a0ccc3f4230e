//! The supervisor's loop: starts a worker group, watches it, and restarts it from the last
//! checkpoint after a fault.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tidemill_telemetry::{EVENTS_FILE, Event, EventKind, append_event, unix_time};

use super::config::SupervisorConfig;
use super::fault::{Fault, FaultCause};
use super::fault_detection::{Verdict, detect_fault};
use super::restart_policy::{Decision, Incident, decide};
use super::worker_group::WorkerGroup;
use super::worker_process::WorkerCommand;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Time between two checks of the workers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Trains with as many workers as allowed. Returns the first rank's result with the faults that
/// happened, which are also events of the run in `folder`.
///
/// # Errors
/// If workers cannot be started, do not stop in time, or fail in a way that a restart does not
/// fix.
pub fn supervise(
    worker: &WorkerCommand,
    allowed: &RangeInclusive<usize>,
    config: &SupervisorConfig,
    folder: &Path,
    reporter: &Reporter,
) -> Result<Value> {
    let signal = StopSignal::watch();
    let (mut incidents, mut faults) = (Vec::<Incident>::new(), Vec::new());
    let (mut slots, mut committed) = ((0..*allowed.end()).collect::<Vec<_>>(), 0);
    loop {
        let mut group = WorkerGroup::start(worker, &slots)?;
        let fault = watch_group(&mut group, config, &signal)?;
        committed = group.committed().unwrap_or(committed);
        let Some(fault) = fault else {
            return Ok(to_result(group.result(), slots.len(), committed, faults));
        };
        let (step, seconds_lost) = (group.step().max(committed), group.seconds_since_checkpoint());
        let has_made_steps = group.has_made_steps();
        drop(group);
        let steps_lost = step - committed;
        record_fault(folder, &fault, (step, steps_lost), seconds_lost, reporter);
        let slot = slots[fault.rank];
        incidents.push(Incident { fault: fault.clone(), slot, step, committed, has_made_steps });
        match decide(&incidents, allowed) {
            Decision::GiveUp(why) => return Err(Error::Workers(why)),
            Decision::Refuse(why) => return Err(Error::Refused(why)),
            Decision::Restart { slots: next_slots, pause } => {
                let workers = next_slots.len();
                let when = if pause.is_zero() { String::new() } else { format!(" in {} s", pause.as_secs()) };
                reporter.report(format!(
                    "{fault}; {steps_lost} steps and {seconds_lost:.1} s since the checkpoint of step {committed} \
                     are lost; starting {workers} workers again{when}"
                ));
                faults.push(json!({
                    "fault": fault.to_string(), "rank": fault.rank, "steps_lost": steps_lost,
                    "seconds_lost": seconds_lost, "workers": workers,
                }));
                slots = next_slots;
                if !wait(pause, &signal) {
                    return Ok(to_result(Value::Null, workers, committed, faults));
                }
            }
        }
    }
}

/// Writes a fault to the run's events. The time until the next step is part of the resume that
/// follows.
fn record_fault(
    folder: &Path,
    fault: &Fault,
    (step, steps_lost): (u64, u64),
    seconds_lost: f64,
    reporter: &Reporter,
) {
    // Nothing of the run is lost: it has not begun, or another process continues it.
    if matches!(fault.cause, FaultCause::Refused(_) | FaultCause::Overtaken(_)) {
        return;
    }
    let event = Event {
        time: unix_time(),
        kind: EventKind::Fault,
        step,
        steps_lost,
        seconds_lost: Some(seconds_lost),
        message: fault.to_string(),
    };
    if let Err(error) = append_event(folder, &event) {
        reporter.report(format!("an event is missing in {}: {error}", folder.join(EVENTS_FILE).display()));
    }
}

/// Watches the workers until all have ended well, which returns `None`, or a rank is at fault.
fn watch_group(
    group: &mut WorkerGroup,
    config: &SupervisorConfig,
    signal: &StopSignal,
) -> Result<Option<Fault>> {
    let mut stopping_since: Option<Instant> = None;
    loop {
        group.poll();
        if signal.is_raised() && stopping_since.is_none() {
            group.terminate();
            stopping_since = Some(Instant::now());
        }
        match (detect_fault(&group.status(), &config.fault_limits()), stopping_since) {
            (Verdict::Done, _) => return Ok(None),
            (Verdict::Fault(fault), Some(_)) if is_requested_stop(&fault.cause) => return Ok(None),
            (Verdict::Fault(fault), Some(_)) => {
                return Err(Error::Workers(format!("{fault}, while all workers were asked to stop")));
            }
            (Verdict::Fault(fault), None) => return Ok(Some(fault)),
            (Verdict::Wait, _) => (),
        }
        if stopping_since.is_some_and(|since| since.elapsed() > config.grace_period()) {
            let seconds = config.grace_period().as_secs();
            let message = format!("they did not stop within {seconds} s and were killed");
            return Err(Error::Workers(message));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether a worker ended as the supervisor asked it to. Before its first step, a worker has
/// nothing to save and just dies of the signal.
fn is_requested_stop(cause: &FaultCause) -> bool {
    matches!(cause, FaultCause::Reclaimed | FaultCause::Killed(SIGTERM | SIGINT | SIGHUP))
}

/// The verb's result: the first rank's result with the faults. Without a result of the first rank:
/// training is not finished.
fn to_result(result: Value, workers: usize, committed: u64, faults: Vec<Value>) -> Value {
    let mut result = match result {
        Value::Null => json!({ "verb": "train", "finished": false, "steps": committed }),
        result => result,
    };
    result["workers"] = workers.into();
    result["faults"] = faults.into();
    result
}

/// Waits for a pause. Returns false if a signal asks to stop.
fn wait(pause: Duration, signal: &StopSignal) -> bool {
    let until = Instant::now() + pause;
    while Instant::now() < until && !signal.is_raised() {
        std::thread::sleep(POLL_INTERVAL);
    }
    !signal.is_raised()
}
