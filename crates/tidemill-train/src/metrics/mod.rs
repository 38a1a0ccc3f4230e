//! What a run reports of itself: one line of JSON per step in `metrics.jsonl`, and the same numbers
//! as TensorBoard events in `tensorboard/`.

use crate::Error;
use crate::metrics::append_log::Records;
use crate::metrics::tensorboard::EventWriter;
use crate::parallel::collectives::StepCommunication;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The numbers of one optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepMetrics {
    /// The step, counted from 1 over all phases.
    pub step: u64,
    /// The phase, counted from 0.
    pub phase: usize,
    /// Its resolution in pixels.
    pub resolution: u32,
    /// Samples trained on so far.
    pub samples: u64,
    /// Mean loss of the global batch.
    pub loss: f64,
    /// Global norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Images per second since the last line.
    pub images_per_second: f64,
    /// TFLOP/s of each rank over the same time, of forward and backward passes as [`UNet2DConditionModel::flops`] counts them.
    ///
    /// [`UNet2DConditionModel::flops`]: tidemill_models::UNet2DConditionModel::flops
    pub tflops: f64,
    /// Their share of what a device can do at most (model FLOPs utilisation), if the run file says that.
    pub mfu: Option<f64>,
    /// Share of that time spent waiting for data.
    pub data_wait: f64,
    /// Seconds of the step in which ranks exchanged something, and waited for it.
    pub communication: StepCommunication,
    /// Resident memory of each rank's process, in MiB.
    pub memory_mib: Vec<u64>,
    /// The most that tensors on each rank's GPU have taken at a time before the step, in MiB, if ranks have GPUs.
    pub gpu_memory_mib: Option<Vec<u64>>,
    /// Mean loss, before weights, of the rows in each tenth of the timesteps, from least noise to most; none where the step has no row.
    pub loss_by_timestep: Vec<Option<f64>>,
    /// The last step with a checkpoint.
    pub checkpoint: u64,
    /// The loss on held-out rows, of steps after which it is taken.
    #[serde(flatten)]
    pub validation: Option<ValidationMetrics>,
}

/// What happened to a run beside its steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Checkpoints that could not be written at the first try.
    pub failed_checkpoints: u64,
    /// Seconds that steps waited for checkpoints.
    pub checkpoint_seconds: f64,
    /// Rows that batches went without because they could not be read.
    pub skipped_rows: u64,
    /// Steps that were left out.
    pub skipped_steps: u64,
    /// Times that the run went back to a checkpoint.
    pub rollbacks: u64,
    /// Loss on held-out rows, when it was last taken.
    pub validation_loss: Option<f64>,
    /// The same with averaged weights.
    pub validation_ema_loss: Option<f64>,
}

/// The loss on rows that are never trained on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValidationMetrics {
    /// Mean squared error of the prediction over all of the rows.
    #[serde(rename = "validation_loss")]
    pub loss: f64,
    /// The same with averaged weights, once there are some.
    #[serde(rename = "validation_ema_loss")]
    pub ema_loss: Option<f64>,
    /// The rows.
    #[serde(rename = "validation_rows")]
    pub rows: u64,
    /// Seconds that it took.
    #[serde(rename = "validation_seconds")]
    pub seconds: f64,
    /// The loss of the rows in each tenth of the timesteps, from least noise to most.
    #[serde(rename = "validation_loss_by_timestep")]
    pub loss_by_timestep: Vec<Option<f64>>,
}

/// The files that metrics go to.
#[derive(Debug)]
pub struct MetricsLog {
    lines: Records,
    events: EventWriter,
}

impl MetricsLog {
    /// Opens `metrics.jsonl` and a new event file under `output`. A resumed run goes on after
    /// `resumed_at`: lines of later steps, which the crash left behind, are removed.
    ///
    /// # Errors
    /// If the files cannot be read or written.
    pub fn open(output: &Path, resumed_at: u64) -> Result<Self, Error> {
        std::fs::create_dir_all(output).map_err(Error::io(output))?;
        let path = output.join("metrics.jsonl");
        drop_lines_after(&path, resumed_at)?;
        let lines = Records::open(&path)?;
        let events = EventWriter::create(&output.join("tensorboard"))?;
        Ok(Self { lines, events })
    }

    /// Adds one step.
    ///
    /// # Errors
    /// If the files cannot be written; then it is tried again with the next step.
    pub fn step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        let mut line = serde_json::to_vec(metrics).unwrap_or_default();
        line.push(b'\n');
        let lines = self.lines.add(&line);
        let most = |mib: &[u64]| mib.iter().max().copied().unwrap_or(0) as f64;
        let mut scalars = vec![
            ("train/loss", metrics.loss),
            ("train/grad_norm", metrics.grad_norm),
            ("train/learning_rate", metrics.learning_rate),
            ("throughput/images_per_second", metrics.images_per_second),
            ("throughput/tflops_per_rank", metrics.tflops),
            ("throughput/data_wait", metrics.data_wait),
            ("memory/most_of_any_rank_mib", most(&metrics.memory_mib)),
            ("checkpoint/step", metrics.checkpoint as f64),
        ];
        scalars.extend(metrics.gpu_memory_mib.iter().map(|mib| ("memory/most_of_any_gpu_mib", most(mib))));
        scalars.extend(metrics.mfu.map(|share| ("throughput/mfu", share)));
        if let Some(validation) = &metrics.validation {
            scalars.push(("validation/loss", validation.loss));
            scalars.extend(validation.ema_loss.map(|loss| ("validation/ema_loss", loss)));
        }
        let mut named: Vec<(String, f64)> = Vec::new();
        for (kind, time) in metrics.communication.kinds() {
            named.push((format!("communication/{kind}_exposed"), time.exposed));
            named.extend(time.busy.map(|seconds| (format!("communication/{kind}"), seconds)));
        }
        let tenths = metrics.loss_by_timestep.iter().enumerate();
        named.extend(
            tenths.filter_map(|(tenth, loss)| Some((format!("loss_by_timestep/tenth_{tenth}"), (*loss)?))),
        );
        scalars.extend(named.iter().map(|(name, value)| (name.as_str(), *value)));
        self.events.scalars(metrics.step, &scalars).and(lines)
    }

    /// Tries again to write what could not be.
    ///
    /// # Errors
    /// If it still cannot be.
    pub fn flush(&mut self) -> Result<(), Error> {
        let lines = self.lines.add(&[]);
        self.events.flush().and(lines)
    }

    /// Adds a picture (PNG of `width` x `height`).
    ///
    /// # Errors
    /// If the file cannot be written; then it is tried again with the next step.
    pub fn picture(&mut self, step: u64, png: &[u8], (width, height): (u32, u32)) -> Result<(), Error> {
        self.events.image(step, "preview", png, width, height)
    }
}

fn drop_lines_after(path: &Path, step: u64) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    let step_of = |line: &str| -> Option<u64> {
        serde_json::from_str::<serde_json::Value>(line).ok()?.get("step")?.as_u64()
    };
    let reader = BufReader::new(File::open(path).map_err(Error::io(path))?);
    let mut kept = String::new();
    for line in reader.lines() {
        let line = line.map_err(Error::io(path))?;
        if step_of(&line).is_some_and(|s| s <= step) {
            kept += &line;
            kept.push('\n');
        }
    }
    let temporary = path.with_extension("jsonl.tmp");
    std::fs::write(&temporary, kept).map_err(Error::io(&temporary))?;
    std::fs::rename(&temporary, path).map_err(Error::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            phase: 0,
            resolution: 64,
            samples: step * 4,
            loss: 0.5,
            grad_norm: 1.0,
            learning_rate: 1e-4,
            images_per_second: 10.0,
            tflops: 0.5,
            mfu: None,
            data_wait: 0.0,
            communication: StepCommunication::default(),
            memory_mib: vec![100],
            gpu_memory_mib: None,
            loss_by_timestep: vec![None; 10],
            checkpoint: 0,
            validation: None,
        }
    }

    #[test]
    fn a_resumed_run_continues_the_file_without_repeating_a_step() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = MetricsLog::open(dir.path(), 0).unwrap();
        (1..=5).for_each(|step| log.step(&at(step)).unwrap());
        std::fs::write(
            dir.path().join("metrics.jsonl"),
            std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap() + "{\"step\": 6, \"lo",
        )
        .unwrap();
        let mut log = MetricsLog::open(dir.path(), 3).unwrap();
        log.step(&at(4)).unwrap();
        let text = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
        let steps: Vec<u64> = text
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, [1, 2, 3, 4]);
    }
}
pub(crate) mod append_log;
pub(crate) mod process_memory;
pub(crate) mod profiler;
pub(crate) mod prometheus;
pub(crate) mod step_stats;
pub(crate) mod tensorboard;
