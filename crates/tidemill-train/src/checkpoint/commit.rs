//! The commit object, which makes a checkpoint exist, and the keys of a checkpoint's objects.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::parameter::Parameter;
use super::progress::Progress;

/// The version of the checkpoint format.
pub const FORMAT: u32 = 2;

/// The commit object.
#[derive(Debug, Serialize, Deserialize)]
pub struct Commit {
    /// [`FORMAT`]
    pub format: u32,
    /// The run's progress.
    pub progress: Progress,
    /// Whether the shards have averaged weights.
    #[serde(rename = "ema")]
    pub has_ema: bool,
    /// The network's parameters, in the order in which their elements are numbered.
    pub parameters: Vec<Parameter>,
    /// The state shards.
    pub shards: Vec<StateShard>,
}

/// A state shard: one rank's file of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub struct StateShard {
    /// The key of the file.
    pub file: String,
    /// The size of the file.
    pub bytes: usize,
    /// The checksum of the file.
    pub crc32c: u32,
    /// The numbers of the elements whose values it has.
    pub ranges: Vec<Range<usize>>,
}

impl StateShard {
    /// Whether size and checksum of the file's contents are right.
    pub fn has_contents(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes && crc32c::crc32c(bytes) == self.crc32c
    }
}

/// The folder of a step's checkpoint.
pub fn step_folder(step: u64) -> String {
    format!("step-{step:08}")
}

/// The key of a step's commit object.
pub fn commit_key(step: u64) -> String {
    format!("{}/commit.json", step_folder(step))
}

/// The step that an object belongs to; `None` for other objects, and for those in deeper folders,
/// which may be another run's.
pub fn parse_step(key: &str) -> Option<u64> {
    key.split('/').next()?.strip_prefix("step-")?.parse().ok()
}

/// The step of a commit object; `None` for other objects.
pub fn parse_committed_step(key: &str) -> Option<u64> {
    parse_step(key).filter(|step| key == commit_key(*step))
}
