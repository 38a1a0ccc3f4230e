//! The last line of `metrics.jsonl`, which the first rank writes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// How much of the end of the file is read, in bytes. A line of metrics is shorter, unless there
/// are very many ranks.
const TAIL_BYTES: u64 = 1 << 16;

/// The file in which the first rank writes metrics.
pub struct MetricsFile(PathBuf);

/// The part of a line of metrics that is shown.
#[derive(Debug, Deserialize, PartialEq)]
pub struct StepLine {
    pub step: u64,
    pub loss: f64,
    pub images_per_second: f64,
}

impl MetricsFile {
    /// The file of a run with this output folder.
    pub fn new(output: &str) -> Self {
        Self(Path::new(output).join("metrics.jsonl"))
    }

    /// Reads the last complete line. Returns `None` if there is none.
    pub fn read_last_step(&self) -> Option<StepLine> {
        let mut file = File::open(&self.0).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail).ok()?;
        let end = tail.iter().rposition(|byte| *byte == b'\n')?;
        let line = tail[..end].rsplit(|byte| *byte == b'\n').next()?;
        serde_json::from_slice(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_step_ignores_an_incomplete_line() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = MetricsFile::new(folder.path().to_str().unwrap());
        assert_eq!(metrics.read_last_step(), None);
        let line =
            |step| format!("{{\"step\": {step}, \"loss\": 0.5, \"images_per_second\": 8.0, \"more\": []}}\n");
        let longer_than_tail: String = (1..5000).map(line).collect();
        for (text, step) in
            [(line(1), Some(1)), (line(1) + &line(2) + "{\"step\"", Some(2)), (longer_than_tail, Some(4999))]
        {
            std::fs::write(&metrics.0, text).unwrap();
            assert_eq!(metrics.read_last_step().map(|last| last.step), step);
        }
    }
}
