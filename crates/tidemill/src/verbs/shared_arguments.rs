//! Command line arguments that several verbs have: the run file with its `--set` overrides, and
//! local output paths.

use std::path::PathBuf;

use crate::error::Result;
use crate::run_file::Run;

/// The arguments of every verb that works from a run file.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// The run file (TOML).
    pub run_file: PathBuf,
    /// Override one key of the run file; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub overrides: Vec<String>,
}

impl RunArgs {
    /// Reads and checks the run file.
    ///
    /// # Errors
    /// If the file cannot be read or has a mistake.
    pub fn open(&self) -> Result<Run> {
        Run::open(&self.run_file, &self.overrides)
    }
}

/// Parses an output path that must be on this machine's file system.
///
/// # Errors
/// If the text is a URI. Without this check, a local folder named after the URI would be created.
pub fn parse_local_path(text: &str) -> std::result::Result<PathBuf, String> {
    if text.contains("://") {
        return Err(
            "this output must be a path on this machine; write it to a local path and copy it from there"
                .into(),
        );
    }
    Ok(text.into())
}
