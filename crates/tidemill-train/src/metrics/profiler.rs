//! A profile of a few steps, by operation: a Chrome trace of each rank, as `torch.profiler` writes it.

use std::path::{Path, PathBuf};

use tch::Device;

use crate::Error;
use crate::config::ProfileConfig;

/// Takes the profile that the run file asks for.
pub(crate) struct Profiler {
    config: ProfileConfig,
    folder: PathBuf,
    rank: usize,
    cuda: bool,
    /// Steps that this process has begun.
    begun: u64,
    taking: Option<tidemill_torch::Profiler>,
}

impl Profiler {
    /// One that writes below `output`.
    pub fn new(config: ProfileConfig, output: &Path, rank: usize, device: Device) -> Self {
        let (folder, cuda) = (output.join("profile"), device.is_cuda());
        Self { config, folder, rank, cuda, begun: 0, taking: None }
    }

    /// A step begins.
    pub fn before_step(&mut self) -> Result<(), Error> {
        if self.begun == self.config.after && self.config.steps > 0 {
            self.taking = Some(tidemill_torch::Profiler::start(self.cuda)?);
        }
        self.begun += 1;
        Ok(())
    }

    /// `step`, counted from 1, has been taken. Gives the trace's path if that was the last step in it.
    pub fn after_step(&mut self, step: u64) -> Result<Option<PathBuf>, Error> {
        if self.begun < self.config.after + self.config.steps { Ok(None) } else { self.save(step) }
    }

    /// Writes what there is, if a profile is being taken; gives the trace's path.
    pub fn save(&mut self, step: u64) -> Result<Option<PathBuf>, Error> {
        let Some(profile) = self.taking.take() else { return Ok(None) };
        std::fs::create_dir_all(&self.folder).map_err(Error::io(&self.folder))?;
        let path = self.folder.join(format!("step-{step:08}-rank-{}.pt.trace.json", self.rank));
        profile.save(&path)?;
        Ok(Some(path))
    }
}
