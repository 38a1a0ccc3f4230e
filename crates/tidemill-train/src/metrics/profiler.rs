//! A profile of a few steps by operation: one Chrome trace per rank, as `torch.profiler` writes it.

use std::path::{Path, PathBuf};

use tch::Device;

use crate::Error;
use crate::config::ProfileConfig;
use crate::observer::Observer;

/// Records the profile that `[train.profile]` asks for.
pub(crate) struct Profiler {
    config: ProfileConfig,
    folder: PathBuf,
    rank: usize,
    is_cuda: bool,
    /// Steps that this process has started.
    started_steps: u64,
    recording: Option<tidemill_torch::Profiler>,
}

impl Profiler {
    /// A profiler that writes to `profile/` under `output`.
    pub fn new(config: ProfileConfig, output: &Path, rank: usize, device: Device) -> Self {
        let (folder, is_cuda) = (output.join("profile"), device.is_cuda());
        Self { config, folder, rank, is_cuda, started_steps: 0, recording: None }
    }

    /// Starts recording if the next step is the first in the profile. Call it before each step.
    ///
    /// # Errors
    /// If libtorch cannot record.
    pub fn before_step(&mut self) -> Result<(), Error> {
        if self.started_steps == self.config.after && self.config.steps > 0 {
            self.recording = Some(tidemill_torch::Profiler::start(self.is_cuda)?);
        }
        self.started_steps += 1;
        Ok(())
    }

    /// Writes the profile if `step`, counted from 1, was the last one in it. Returns the path of
    /// the trace.
    ///
    /// # Errors
    /// If the trace cannot be written.
    pub fn after_step(&mut self, step: u64) -> Result<Option<PathBuf>, Error> {
        let is_complete = self.started_steps >= self.config.after + self.config.steps;
        if is_complete { self.save(step) } else { Ok(None) }
    }

    /// Writes what has been recorded, if a recording is in progress. Returns the path of the trace.
    ///
    /// # Errors
    /// If the trace cannot be written.
    pub fn save(&mut self, step: u64) -> Result<Option<PathBuf>, Error> {
        let Some(profile) = self.recording.take() else { return Ok(None) };
        std::fs::create_dir_all(&self.folder).map_err(Error::io(&self.folder))?;
        let path = self.folder.join(format!("step-{step:08}-rank-{}.pt.trace.json", self.rank));
        profile.save(&path)?;
        Ok(Some(path))
    }
}

/// Reports the trace of the steps up to `step`, or why it cannot be written. Training
/// continues in both cases.
pub(crate) fn report_profile(step: u64, saved: Result<Option<PathBuf>, Error>, observer: &mut dyn Observer) {
    match saved {
        Ok(Some(path)) => observer.log(&format!("profile of the steps up to {step}: {}", path.display())),
        Ok(None) => (),
        Err(problem) => observer.log(&format!("a profile cannot be written: {problem}")),
    }
}
