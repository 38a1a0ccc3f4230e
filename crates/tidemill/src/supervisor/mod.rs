//! `tidemill train --workers`: starts the processes that train together on this machine, watches them, and starts them again from
//! the last checkpoint when one is lost. A worker that is lost takes its generation with it: the others cannot go on without it, and
//! all that counts is in the checkpoints.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use self::config::SupervisorConfig;
use self::fault::{Cause, Fault, Verdict, judge};
pub use self::heartbeat::Heartbeat;
pub use self::messages::{Doing, Ended, Message};
use self::policy::{Incident, Next, next};
pub use self::worker_group::WorkerCommand;
use self::worker_group::WorkerGroup;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::reporter::Reporter;

mod config;
mod fault;
mod heartbeat;
mod messages;
mod policy;
mod worker_group;

/// Time between two looks at the workers.
const EVERY: Duration = Duration::from_millis(50);

/// Trains with as many workers as allowed; gives what the first of them gives, and the faults there were.
///
/// # Errors
/// If workers cannot be started, do not stop in time, or fail in a way that starting again does not mend.
pub fn supervise(
    worker: &WorkerCommand,
    allowed: &RangeInclusive<usize>,
    config: &SupervisorConfig,
    reporter: &Reporter,
) -> Result<Value> {
    let signal = StopSignal::watch();
    let (mut incidents, mut said) = (Vec::<Incident>::new(), Vec::new());
    let (mut places, mut committed) = ((0..*allowed.end()).collect::<Vec<_>>(), 0);
    loop {
        let mut group = WorkerGroup::start(worker, &places)?;
        let fault = watch(&mut group, config, &signal)?;
        committed = group.committed().unwrap_or(committed);
        let Some(fault) = fault else { return Ok(ended(group.result(), places.len(), committed, said)) };
        let (step, seconds) = (group.step().max(committed), group.seconds_at_risk());
        let stepped = group.stepped();
        drop(group);
        incidents.push(Incident {
            fault: fault.clone(),
            place: places[fault.rank],
            step,
            committed,
            stepped,
        });
        let lost = format!(
            "{} steps and {seconds:.1} s since the checkpoint of step {committed} are lost",
            step - committed
        );
        match next(&incidents, allowed) {
            Next::GiveUp(why) => return Err(Error::Workers(why)),
            Next::Refuse(why) => return Err(Error::Refused(why)),
            Next::Restart { places: left, pause } => {
                let workers = left.len();
                let when = if pause.is_zero() { String::new() } else { format!(" in {} s", pause.as_secs()) };
                reporter.say(format!("{fault}; {lost}; starting {workers} workers again{when}"));
                said.push(json!({
                    "fault": fault.to_string(), "rank": fault.rank, "steps_lost": step - committed,
                    "seconds_lost": seconds, "workers": workers,
                }));
                places = left;
                if !wait(pause, &signal) {
                    return Ok(ended(Value::Null, workers, committed, said));
                }
            }
        }
    }
}

/// Watches until all have ended well, which gives none, or one is at fault.
fn watch(group: &mut WorkerGroup, config: &SupervisorConfig, signal: &StopSignal) -> Result<Option<Fault>> {
    let mut stopping: Option<Instant> = None;
    loop {
        group.look();
        if signal.raised() && stopping.is_none() {
            group.terminate();
            stopping = Some(Instant::now());
        }
        match (judge(&group.view(), &config.limits()), stopping) {
            (Verdict::Done, _) => return Ok(None),
            // As it was asked to; before its first step a worker has nothing to save, and just dies.
            (
                Verdict::Fault(Fault {
                    cause: Cause::Reclaimed | Cause::Killed(SIGTERM | SIGINT | SIGHUP),
                    ..
                }),
                Some(_),
            ) => {
                return Ok(None);
            }
            (Verdict::Fault(fault), Some(_)) => {
                return Err(Error::Workers(format!("{fault}, while all were to stop")));
            }
            (Verdict::Fault(fault), None) => return Ok(Some(fault)),
            (Verdict::Wait, _) => (),
        }
        if stopping.is_some_and(|since| since.elapsed() > config.grace()) {
            let message = format!("they did not stop within {} s and are killed", config.grace().as_secs());
            return Err(Error::Workers(message));
        }
        std::thread::sleep(EVERY);
    }
}

/// What the verb gives: what the first rank gave, if it came so far, else that there is more to do; with the faults there were.
fn ended(result: Value, workers: usize, committed: u64, faults: Vec<Value>) -> Value {
    let mut result = match result {
        Value::Null => json!({ "verb": "train", "finished": false, "steps": committed }),
        result => result,
    };
    result["workers"] = workers.into();
    result["faults"] = faults.into();
    result
}

/// Lets a pause pass; false if all are to stop.
fn wait(pause: Duration, signal: &StopSignal) -> bool {
    let until = Instant::now() + pause;
    while Instant::now() < until && !signal.raised() {
        std::thread::sleep(EVERY);
    }
    !signal.raised()
}
