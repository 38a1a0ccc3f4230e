//! The metrics files of a run: JSON lines and TensorBoard events.

use std::path::Path;

use crate::Error;
use crate::metrics::json_lines_log::{JsonLinesLog, LostSteps};
use crate::metrics::step_metrics::StepMetrics;
use crate::metrics::tensorboard::EventWriter;

/// The files that metrics are written to.
#[derive(Debug)]
pub(crate) struct MetricsLog {
    json_lines: JsonLinesLog,
    tensorboard: EventWriter,
}

impl MetricsLog {
    /// Opens `metrics.jsonl` and a new TensorBoard event file under `output`. A run that resumed at
    /// a step continues after it: lines of later steps are removed, and returned as lost.
    ///
    /// # Errors
    /// If the files cannot be read or written.
    pub fn open(output: &Path, resumed_at: u64) -> Result<(Self, LostSteps), Error> {
        std::fs::create_dir_all(output).map_err(Error::io(output))?;
        let (json_lines, lost) = JsonLinesLog::open(output, resumed_at)?;
        let tensorboard = EventWriter::create(&output.join("tensorboard"))?;
        Ok((Self { json_lines, tensorboard }, lost))
    }

    /// Writes the metrics of a step to both files.
    ///
    /// # Errors
    /// If a file cannot be written. The metrics are kept, and written with those of the next step.
    pub fn write_step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        let json_result = self.json_lines.append(metrics);
        let scalars = metrics.to_scalars();
        let scalars: Vec<(&str, f64)> = scalars.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
        self.tensorboard.write_scalars(metrics.step, &scalars).and(json_result)
    }

    /// Writes a preview grid (a PNG of `width` x `height` pixels) to TensorBoard.
    ///
    /// # Errors
    /// If the file cannot be written. The image is kept, and written with the next step.
    pub fn write_preview(&mut self, step: u64, png: &[u8], (width, height): (u32, u32)) -> Result<(), Error> {
        self.tensorboard.write_image(step, "preview", png, width, height)
    }

    /// Tries again to write what could not be written before.
    ///
    /// # Errors
    /// If a file still cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        let json_result = self.json_lines.flush();
        self.tensorboard.flush().and(json_result)
    }
}
