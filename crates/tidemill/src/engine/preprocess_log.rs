//! `preprocess.jsonl` in the output folder: what the stages, the machine and its GPUs do, a line every
//! few seconds.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tch::Device;
use tidemill_telemetry::{Sampler, unix_time};

use crate::engine::stage_utilization::StageUtilization;

/// The name of the file in the output folder.
pub const PREPROCESS_LOG: &str = "preprocess.jsonl";

/// The time between two lines. A line has 0.9 kB without a GPU, so those of a week have 105 MB.
pub const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Writes the lines of one process.
pub struct PreprocessLog {
    started: Instant,
    /// One for each GPU that encodes, or one of the machine alone.
    samplers: Vec<Sampler>,
    file: Mutex<io::Result<File>>,
}

impl PreprocessLog {
    /// Starts to read the machine and these devices. If the file cannot be opened, [`finish`] tells.
    ///
    /// [`finish`]: Self::finish
    pub fn start(folder: &Path, devices: &[Device]) -> Self {
        let mut gpus: Vec<Option<u32>> = devices.iter().map(|device| gpu_index(*device)).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let options = OpenOptions::new().create(true).append(true).clone();
        let file = std::fs::create_dir_all(folder).and_then(|()| options.open(folder.join(PREPROCESS_LOG)));
        Self {
            started: Instant::now(),
            samplers: gpus.into_iter().map(Sampler::start).collect(),
            file: Mutex::new(file),
        }
    }

    /// Appends a line. After an error there are no more lines.
    pub fn write(&self, stages: &[StageUtilization]) {
        let telemetry: Vec<_> = self.samplers.iter().filter_map(Sampler::summary).collect();
        let line = json!({
            "time": unix_time(),
            "seconds": self.started.elapsed().as_secs_f64(),
            "stages": stages,
            "telemetry": telemetry,
        });
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(open) = &mut *file
            && let Err(error) = open.write_all(format!("{line}\n").as_bytes())
        {
            *file = Err(error);
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If it could not be opened, or a line could not be written.
    pub fn finish(self) -> io::Result<()> {
        self.file.into_inner().unwrap_or_else(PoisonError::into_inner).map(drop)
    }
}

fn gpu_index(device: Device) -> Option<u32> {
    match device {
        Device::Cuda(index) => u32::try_from(index).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::stage_utilization::StageMeter;

    #[test]
    fn each_line_has_the_stages_and_errors_are_told_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = PreprocessLog::start(folder.path(), &[Device::Cpu, Device::Cpu]);
        assert_eq!(log.samplers.len(), 1);
        let meter = StageMeter::new("encode", 2);
        meter.add_rows(8);
        log.write(&[meter.utilization_since(&Default::default(), 2.0)]);
        log.write(&[]);
        log.finish().unwrap();
        let text = std::fs::read_to_string(folder.path().join(PREPROCESS_LOG)).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((lines.len(), &lines[0]["stages"][0]["rows_per_second"]), (2, &4.0.into()));
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let log = PreprocessLog::start(&blocked, &[]);
        log.write(&[]);
        log.finish().unwrap_err();
    }
}
