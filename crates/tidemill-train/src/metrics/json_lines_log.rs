//! `metrics.jsonl`: one line of JSON per step.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::Error;
use crate::metrics::append_only_file::AppendOnlyFile;
use crate::metrics::step_metrics::StepMetrics;

/// The file `metrics.jsonl` of a run.
#[derive(Debug)]
pub(crate) struct JsonLinesLog(AppendOnlyFile);

impl JsonLinesLog {
    /// Opens the file in the folder `output`. A run that resumed at a step removes the lines of
    /// later steps, which an interrupted process left behind; they are returned as lost.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open(output: &Path, resumed_at: u64) -> Result<(Self, LostSteps), Error> {
        let path = output.join("metrics.jsonl");
        let lost = drop_lines_after(&path, resumed_at)?;
        Ok((Self(AppendOnlyFile::open(&path)?), lost))
    }

    /// Appends a step.
    ///
    /// # Errors
    /// If the file cannot be written. The line is kept, and written with the next.
    pub fn append(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        let mut line = serde_json::to_vec(metrics).unwrap_or_default();
        line.push(b'\n');
        self.0.append(&line)
    }

    /// Tries again to write lines that could not be written before.
    ///
    /// # Errors
    /// If they still cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.0.append(&[])
    }
}

/// Steps whose weights are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LostSteps {
    /// How many.
    pub count: u64,
    /// The seconds that they took.
    pub seconds: f64,
}

/// The fields of a line that tell how long its step took.
#[derive(Deserialize)]
struct StepTime {
    step: u64,
    #[serde(default)]
    samples: u64,
    /// Null where it was not finite.
    images_per_second: Option<f64>,
}

/// Removes the lines of steps after `step`, and lines that were cut off. Returns the steps of the
/// former.
fn drop_lines_after(path: &Path, step: u64) -> Result<LostSteps, Error> {
    let mut lost = LostSteps::default();
    if !path.exists() {
        return Ok(lost);
    }
    let reader = BufReader::new(File::open(path).map_err(Error::io(path))?);
    let (mut kept, mut samples) = (String::new(), 0);
    for line in reader.lines() {
        let line = line.map_err(Error::io(path))?;
        let Ok(time) = serde_json::from_str::<StepTime>(&line) else { continue };
        if time.step <= step {
            kept += &line;
            kept.push('\n');
        } else {
            lost.count += 1;
            let images = time.samples.saturating_sub(samples) as f64;
            let rate = time.images_per_second.filter(|rate| *rate > 0.0);
            lost.seconds += rate.map_or(0.0, |rate| images / rate);
        }
        samples = time.samples;
    }
    let temporary = path.with_extension("jsonl.tmp");
    std::fs::write(&temporary, kept).map_err(Error::io(&temporary))?;
    std::fs::rename(&temporary, path).map_err(Error::io(path))?;
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::step_metrics::tests::metrics_of_step;

    #[test]
    fn resumed_log_has_each_step_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let (mut log, _) = JsonLinesLog::open(dir.path(), 0).unwrap();
        (1..=5).for_each(|step| {
            // JSON has null in place of numbers that are not finite.
            let images_per_second = if step == 2 { f64::INFINITY } else { 10.0 };
            log.append(&StepMetrics { images_per_second, ..metrics_of_step(step) }).unwrap();
        });
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{\"step\": 6, \"lo").unwrap();
        let (mut log, lost) = JsonLinesLog::open(dir.path(), 3).unwrap();
        assert_eq!(lost.count, 2);
        log.append(&metrics_of_step(4)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let steps: Vec<u64> = text
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, [1, 2, 3, 4]);
    }
}
