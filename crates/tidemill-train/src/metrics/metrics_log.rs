//! The metrics files of a run: JSON lines and TensorBoard events.

use std::path::Path;

use tidemill_telemetry::NUMBERS;

use crate::Error;
use crate::metrics::json_lines_log::JsonLinesLog;
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
    /// a step continues after it: lines of later steps are removed.
    ///
    /// # Errors
    /// If the files cannot be read or written.
    pub fn open(output: &Path, resumed_at: u64) -> Result<Self, Error> {
        std::fs::create_dir_all(output).map_err(Error::io(output))?;
        let json_lines = JsonLinesLog::open(output, resumed_at)?;
        let tensorboard = EventWriter::create(&output.join("tensorboard"))?;
        Ok(Self { json_lines, tensorboard })
    }

    /// Writes the metrics of a step to both files.
    ///
    /// # Errors
    /// If a file cannot be written. The metrics are kept, and written with those of the next step.
    pub fn write_step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        let json_result = self.json_lines.append(metrics);
        let scalars = tensorboard_scalars(metrics);
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

/// A step's metrics under their TensorBoard tags.
fn tensorboard_scalars(metrics: &StepMetrics) -> Vec<(String, f64)> {
    let largest = |mib: &[u64]| mib.iter().max().copied().unwrap_or(0) as f64;
    let mut scalars = vec![
        ("train/loss", metrics.loss),
        ("train/grad_norm", metrics.grad_norm),
        ("train/learning_rate", metrics.learning_rate),
        ("throughput/images_per_second", metrics.images_per_second),
        ("throughput/tflops_per_rank", metrics.tflops),
        ("throughput/data_wait", metrics.data_wait),
        ("memory/most_of_any_rank_mib", largest(&metrics.memory_mib)),
        ("checkpoint/step", metrics.checkpoint as f64),
    ];
    scalars.extend(metrics.gpu_memory_mib.iter().map(|mib| ("memory/most_of_any_gpu_mib", largest(mib))));
    scalars.extend(metrics.mfu.map(|mfu| ("throughput/mfu", mfu)));
    if let Some(validation) = &metrics.validation {
        scalars.push(("validation/loss", validation.loss));
        scalars.extend(validation.ema_loss.map(|loss| ("validation/ema_loss", loss)));
    }
    let mut scalars: Vec<(String, f64)> =
        scalars.into_iter().map(|(tag, value)| (tag.to_owned(), value)).collect();
    for (kind, time) in metrics.communication.by_kind() {
        scalars.push((format!("communication/{kind}_exposed"), time.exposed));
        scalars.extend(time.busy.map(|seconds| (format!("communication/{kind}"), seconds)));
    }
    let samples = metrics.telemetry.as_deref().unwrap_or_default();
    for number in NUMBERS {
        let value = number.summarise(samples);
        scalars.extend(value.map(|value| (format!("telemetry/{}", number.name), value)));
    }
    let tenths = metrics.loss_by_timestep.iter().enumerate();
    scalars.extend(
        tenths.filter_map(|(tenth, loss)| Some((format!("loss_by_timestep/tenth_{tenth}"), (*loss)?))),
    );
    scalars
}
