//! The verbs of the command line, one file each: an `Args` struct and a `run` that gives the verb's result as JSON.

pub mod bench;
pub mod dedup;
pub mod doctor;
pub mod export;
pub mod gc;
pub mod inspect;
pub mod mds;
pub mod place;
pub mod preprocess;
pub mod run;
pub mod sample;
pub mod synth;
pub mod train;

use std::path::PathBuf;

use crate::error::Result;
use crate::run_file::Run;

/// What every verb that works from a run file takes.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// The run file (TOML).
    pub run_file: PathBuf,
    /// Override one key of the run file; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// A path of this machine, for what is written here only.
///
/// # Errors
/// If it is a URI: a folder would get its name.
pub fn local_path(text: &str) -> std::result::Result<PathBuf, String> {
    match text.contains("://") {
        true => Err("this is written to a path of this machine only; copy it from there".into()),
        false => Ok(text.into()),
    }
}

impl RunArgs {
    /// Reads and checks the run file.
    ///
    /// # Errors
    /// A mistake in it.
    pub fn open(&self) -> Result<Run> {
        Run::open(&self.run_file, &self.overrides)
    }
}
