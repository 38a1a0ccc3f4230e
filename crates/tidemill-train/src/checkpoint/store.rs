//! The checkpoints of one run, and access to their objects.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tidemill_io::Location;

use super::best::BestCheckpoints;
use super::commit::{Commit, FORMAT, StateShard, commit_key, parse_committed_step, step_folder};
use crate::Error;
use crate::config::CheckpointConfig;

/// The checkpoints of one run.
#[derive(Debug)]
pub struct Checkpoints {
    pub(super) location: Location,
    /// The location as a path, for messages.
    pub(super) path: PathBuf,
    pub(super) keep: usize,
    pub(super) keep_every: Option<u64>,
    pub(super) best: Option<BestCheckpoints>,
}

impl Checkpoints {
    /// Opens the checkpoints at `config.uri`, or in `checkpoints/` under `output`.
    ///
    /// # Errors
    /// If the location cannot be reached.
    pub fn open(config: &CheckpointConfig, output: &Path) -> Result<Self, Error> {
        let uri = config.uri.clone().unwrap_or_else(|| output.join("checkpoints").display().to_string());
        let location = Location::open(&uri)?;
        Ok(Self {
            location,
            path: uri.into(),
            keep: config.keep.max(1),
            keep_every: config.keep_every.filter(|every| *every > 0),
            best: config.keep_best.as_ref().map(|best| BestCheckpoints::open(best, output)).transpose()?,
        })
    }

    /// The steps that have a committed checkpoint, in ascending order.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn list_steps(&self) -> Result<Vec<u64>, Error> {
        let mut steps: Vec<u64> =
            self.location.list("")?.iter().filter_map(|key| parse_committed_step(key)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// A digest that tells a step's checkpoint from any other, also from one of the same step of
    /// another training; `None` if there is no checkpoint of the step.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn digest(&self, step: u64) -> Result<Option<String>, Error> {
        // The commit has the checksums of all shards.
        let commit = self.location.get_if_present(&commit_key(step))?;
        Ok(commit.map(|bytes| format!("{:08x}-{}", crc32c::crc32c(&bytes), bytes.len())))
    }

    /// Reads the commit of a step.
    pub(super) fn read_commit(&self, step: u64) -> Result<Commit, Error> {
        let key = commit_key(step);
        let bytes = self.location.get(&key)?;
        let invalid = |e: serde_json::Error| self.error(&key, format!("not a commit: {e}"));
        let value: Value = serde_json::from_slice(&bytes).map_err(invalid)?;
        if value["format"] != FORMAT {
            let message = format!("format {} is not known to this version of Tidemill", value["format"]);
            return Err(self.error(&key, message));
        }
        serde_json::from_value(value).map_err(invalid)
    }

    /// Reads a state shard, and verifies its checksum.
    pub(super) fn read_shard(&self, step: u64, shard: &StateShard) -> Result<Bytes, Error> {
        let bytes = self.location.get(&shard.file)?;
        if !shard.has_contents(&bytes) {
            let message = format!(
                "the shard's checksum is wrong; remove {} to resume from the previous checkpoint",
                step_folder(step)
            );
            return Err(self.error(&shard.file, message));
        }
        Ok(bytes)
    }

    pub(super) fn put_json(&self, key: &str, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(value).map_err(|e| self.error(key, e.to_string()))?;
        Ok(self.location.put(key, text.into())?)
    }

    /// An error about the object or folder `name`.
    pub(super) fn error(&self, name: &str, message: String) -> Error {
        Error::Checkpoint { path: self.path.join(name), message }
    }
}
