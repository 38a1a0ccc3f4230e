//! Memory over a step, if the run was profiled (`[train.profile]`).

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tidemill_report::Chart;
use tidemill_report::memory_timeline::read_memory_chart;

/// A larger trace takes too long to read.
const MOST_BYTES: u64 = 256 << 20;

/// The chart of the last trace of the first rank.
pub fn read_step_memory(folder: &Path, remarks: &mut Vec<String>) -> Option<Chart> {
    let path = find_last_trace(&folder.join("profile"))?;
    let mut tell = |problem: String| {
        remarks.push(format!("no memory over a step is shown: {}: {problem}", path.display()));
    };
    let file = File::open(&path).map_err(|error| tell(error.to_string())).ok()?;
    if file.metadata().is_ok_and(|metadata| metadata.len() > MOST_BYTES) {
        tell("it is larger than 256 MiB; profile fewer steps".into());
        return None;
    }
    let chart = read_memory_chart(BufReader::with_capacity(1 << 20, file));
    chart.map_err(|error| tell(error.to_string())).ok().flatten()
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
