//! The last step of a run that was profiled (`[train.profile]`): its memory, and what runs at which time of it.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tidemill_report::memory_timeline::draw_memory;
use tidemill_report::step_timeline::{StepTimeline, read_timeline};
use tidemill_report::trace::read_trace;
use tidemill_report::{Chart, Picture};

use crate::chart::timeline::draw_timeline;

/// A larger trace takes too long to read.
const MOST_BYTES: u64 = 256 << 20;

/// What the page has of a profile.
#[derive(Default)]
pub struct StepProfile {
    /// Memory over the step.
    pub memory: Option<Chart>,
    /// The step's timeline, with its title.
    pub timeline: Option<(String, Picture)>,
}

/// Reads the last trace of the first rank.
pub fn read_step_profile(folder: &Path, remarks: &mut Vec<String>) -> StepProfile {
    let Some(path) = find_last_trace(&folder.join("profile")) else { return StepProfile::default() };
    match read(&path) {
        Ok(profile) => profile,
        Err(problem) => {
            remarks.push(format!("no profiled step is shown: {}: {problem}", path.display()));
            StepProfile::default()
        }
    }
}

fn read(path: &Path) -> Result<StepProfile, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    if file.metadata().is_ok_and(|metadata| metadata.len() > MOST_BYTES) {
        return Err("it is larger than 256 MiB; profile fewer steps".into());
    }
    let trace = read_trace(BufReader::with_capacity(1 << 20, file)).map_err(|error| error.to_string())?;
    let timeline = read_timeline(&trace).map(|timeline| {
        (describe(&timeline), Picture::new("image/svg+xml", draw_timeline(&timeline).as_bytes()))
    });
    Ok(StepProfile { memory: draw_memory(&trace), timeline })
}

/// The title of a timeline.
fn describe(timeline: &StepTimeline) -> String {
    let communication = timeline.communication.map(|(all, exposed)| {
        format!("; communication {all:.1} ms, {exposed:.1} ms of it while nothing is computed")
    });
    format!("One step of rank 0, {:.1} ms{}", timeline.ms, communication.unwrap_or_default())
}

/// Names of traces have the step in eight digits, so that they sort by it.
fn find_last_trace(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let traces = entries.map(|entry| entry.path()).filter(|path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.ends_with("-rank-0.pt.trace.json"))
    });
    traces.max()
}
