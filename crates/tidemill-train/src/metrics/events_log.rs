//! The trainer's part of `events.jsonl`: what resuming, rollbacks and slow ranks cost.

use std::path::{Path, PathBuf};

use tidemill_telemetry::{Event, EventKind, append_event, read_events, unix_time};

use crate::Error;
use crate::metrics::json_lines_log::LostSteps;

/// Writes the events of a run. Only the first rank has one.
#[derive(Debug)]
pub(crate) struct EventsLog {
    folder: PathBuf,
    /// The resumption that started this process, until its first step is done.
    resume: Option<Resume>,
}

/// A resumption whose first step is not done yet.
#[derive(Debug)]
struct Resume {
    /// The step of the checkpoint.
    step: u64,
    /// Steps of an earlier process that no checkpoint has.
    lost: LostSteps,
    /// When steps ended, or when this process started if that is not known.
    since: f64,
}

impl EventsLog {
    /// The events of a run in `folder` that starts or resumes after `step` now. `lost` are the steps of an
    /// earlier process after it.
    ///
    /// # Errors
    /// If the events so far cannot be read.
    pub fn open(folder: &Path, step: u64, lost: LostSteps) -> Result<Self, Error> {
        let events = read_events(folder).map_err(Error::io(folder))?;
        // The supervisor has counted the steps that a fault cost, and the time until now belongs to it.
        let resume = match events.last() {
            Some(fault) if fault.kind == EventKind::Fault => {
                Some(Resume { step, lost: LostSteps::default(), since: fault.time })
            }
            _ if step > 0 || lost.count > 0 => Some(Resume { step, lost, since: unix_time() }),
            _ => None,
        };
        Ok(Self { folder: folder.into(), resume })
    }

    /// Writes what resuming has cost, once the first step is done.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish_resume(&mut self) -> Result<(), Error> {
        let Some(Resume { step, lost, since }) = self.resume.take() else { return Ok(()) };
        let seconds = (unix_time() - since).max(0.0) + lost.seconds;
        self.append(EventKind::Resume, step, lost.count, Some(seconds), format!("resumed after step {step}"))
    }

    /// Writes a rollback from `step` to the checkpoint of `restored`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record_rollback(&self, step: u64, restored: u64, seconds: f64) -> Result<(), Error> {
        let message = format!("the loss of step {step} was abnormal: rolled back to step {restored}");
        self.append(EventKind::Rollback, step, step - restored, Some(seconds), message)
    }

    /// Writes that a rank is slow. What that costs is in the metrics of each step.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record_slow_rank(&self, step: u64, message: &str) -> Result<(), Error> {
        self.append(EventKind::SlowRank, step, 0, None, message.to_owned())
    }

    fn append(
        &self,
        kind: EventKind,
        step: u64,
        steps_lost: u64,
        seconds_lost: Option<f64>,
        message: String,
    ) -> Result<(), Error> {
        let event = Event { time: unix_time(), kind, step, steps_lost, seconds_lost, message };
        append_event(&self.folder, &event).map_err(Error::io(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events after the first step of a process that starts at `step`.
    fn events_after(folder: &Path, step: u64, lost: LostSteps) -> Vec<Event> {
        EventsLog::open(folder, step, lost).unwrap().finish_resume().unwrap();
        read_events(folder).unwrap()
    }

    #[test]
    fn time_of_a_resume_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(events_after(folder.path(), 0, LostSteps::default()).is_empty(), "a new run loses nothing");
        let events = events_after(folder.path(), 8, LostSteps { count: 3, seconds: 60.0 });
        let seconds = events[0].seconds_lost.unwrap();
        assert!((60.0..61.0).contains(&seconds), "{seconds}");
        assert_eq!((events[0].kind, events[0].step, events[0].steps_lost), (EventKind::Resume, 8, 3));
        let fault = Event {
            time: unix_time() - 20.0,
            kind: EventKind::Fault,
            step: 11,
            steps_lost: 3,
            seconds_lost: Some(60.0),
            message: "rank 0 was killed".into(),
        };
        append_event(folder.path(), &fault).unwrap();
        let events = events_after(folder.path(), 8, LostSteps { count: 3, seconds: 60.0 });
        let seconds = events[2].seconds_lost.unwrap();
        assert!((20.0..21.0).contains(&seconds) && events[2].steps_lost == 0, "{events:?}");
    }
}
