//! `events.jsonl` in a run's folder: what cost the run time, one line of JSON each.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The name of the file.
pub const EVENTS_FILE: &str = "events.jsonl";

/// Something that cost a run time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When it was noticed, in seconds since 1970.
    pub time: f64,
    /// What it was.
    pub kind: EventKind,
    /// The step at which it happened.
    pub step: u64,
    /// Steps that are computed again.
    pub steps_lost: u64,
    /// Seconds of these steps, and seconds without steps. None if that is not known.
    pub seconds_lost: Option<f64>,
    /// What happened, in words.
    pub message: String,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A worker was lost, or hangs. The time until the next step is lost with the resume after it.
    Fault,
    /// A process continued from a checkpoint.
    Resume,
    /// The run returned to a checkpoint because of an abnormal step.
    Rollback,
    /// A rank or its link to the others is slow, and the others wait for it.
    SlowRank,
}

impl EventKind {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Resume => "resume",
            Self::Rollback => "rollback",
            Self::SlowRank => "slow rank",
        }
    }
}

/// Seconds since 1970.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Appends an event to the file in a run's folder.
///
/// # Errors
/// If the file cannot be written.
pub fn append_event(folder: &Path, event: &Event) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    // One write, so that lines of two processes do not mix.
    OpenOptions::new().create(true).append(true).open(folder.join(EVENTS_FILE))?.write_all(&line)
}

/// All events of a run's folder, in order. Lines that are cut or unknown are left out.
///
/// # Errors
/// If the file exists and cannot be read.
pub fn read_events(folder: &Path) -> io::Result<Vec<Event>> {
    let file = match File::open(folder.join(EVENTS_FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let lines = BufReader::new(file).split(b'\n').collect::<io::Result<Vec<_>>>()?;
    Ok(lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_they_were_appended() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        assert!(read_events(&run).unwrap().is_empty());
        let event = |kind, seconds_lost| Event {
            time: 1.5e9,
            kind,
            step: 12,
            steps_lost: 2,
            seconds_lost,
            message: "rank 1 was killed".into(),
        };
        let events = [event(EventKind::Fault, Some(3.25)), event(EventKind::SlowRank, None)];
        append_event(&run, &events[0]).unwrap();
        let file = OpenOptions::new().append(true).open(run.join(EVENTS_FILE));
        file.unwrap().write_all(b"{\"time\": 1, \"ki\n").unwrap();
        append_event(&run, &events[1]).unwrap();
        assert_eq!(read_events(&run).unwrap(), events);
    }
}
