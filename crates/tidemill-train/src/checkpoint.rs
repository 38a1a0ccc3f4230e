//! Checkpoints on object storage: each rank writes its shard under a name of its own, then the first rank, when all are there, one
//! commit object, put only if absent. A checkpoint without its commit does not exist, so a crash at any moment leaves the one
//! before intact. Any number of ranks loads what any other number wrote.
//!
//! ```text
//! <uri>/step-00001000/<attempt>/rank-0-of-4.safetensors    master, exp_avg, exp_avg_sq, ema: f32, as `snapshot` says
//! <uri>/step-00001000/<attempt>/rank-1-of-4.json           [`Shard`]: that rank's is complete
//! <uri>/step-00001000/commit.json                          [`Commit`]
//! <uri>/run.json                                           what the run is made of, for people, and its last start
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::Device;
use tidemill_io::Location;

pub use self::save::Writer;
use crate::Error;
use crate::config::CheckpointConfig;
use crate::snapshot::Parameter;
use crate::world::World;

mod load;
mod save;

/// Where a run stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps done, over all phases.
    pub step: u64,
    /// Samples trained on.
    pub samples: u64,
    /// The phase that `stream` belongs to.
    pub phase: usize,
    /// Where the data go on, as [`crate::Batches::state`] says; `None` before the first batch.
    pub stream: Option<serde_json::Value>,
    /// Losses of the last steps.
    pub recent_losses: VecDeque<f64>,
    /// What the run is made of: model, schedule, dataset, seed. A checkpoint of another is refused.
    pub identity: serde_json::Value,
    /// `[train]` of the run file, which may change from one start to the next.
    pub settings: serde_json::Value,
}

impl Progress {
    /// The beginning of a run.
    pub fn start(identity: serde_json::Value, settings: serde_json::Value) -> Self {
        Self {
            step: 0,
            samples: 0,
            phase: 0,
            stream: None,
            recent_losses: VecDeque::new(),
            identity,
            settings,
        }
    }
}

/// The commit object.
#[derive(Debug, Serialize, Deserialize)]
struct Commit {
    format: u32,
    progress: Progress,
    /// Whether the shards hold averaged weights.
    ema: bool,
    /// The network's parameters, in the order in which their elements are numbered.
    parameters: Vec<Parameter>,
    shards: Vec<Shard>,
}

/// A shard file.
#[derive(Debug, Serialize, Deserialize)]
struct Shard {
    file: String,
    bytes: usize,
    crc32c: u32,
    /// Which elements it has.
    ranges: Vec<Range<usize>>,
}

impl Shard {
    /// Whether these are its bytes.
    fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes && crc32c::crc32c(bytes) == self.crc32c
    }
}

const FORMAT: u32 = 2;

/// The key of the object that says what run the checkpoints are of, and who last began to write them.
const RUN: &str = "run.json";

/// How late a shared folder may show on one node what was written on another.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// The checkpoints of one run.
#[derive(Debug)]
pub struct Checkpoints {
    location: Location,
    /// For messages.
    path: PathBuf,
    keep: usize,
}

impl Checkpoints {
    /// The checkpoints at `config.uri`, or in `checkpoints/` under `output`.
    ///
    /// # Errors
    /// If the place cannot be reached.
    pub fn open(config: &CheckpointConfig, output: &Path) -> Result<Self, Error> {
        let uri = config.uri.clone().unwrap_or_else(|| output.join("checkpoints").display().to_string());
        let location = Location::open(&uri)?;
        Ok(Self { location, path: uri.into(), keep: config.keep.max(1) })
    }

    /// Makes sure that checkpoints can be written, and leaves word of what run they are of.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn prepare(&self, identity: &serde_json::Value, writer: &Writer) -> Result<(), Error> {
        self.put_json(RUN, &serde_json::json!({ "run": identity, "attempt": writer.attempt }))
    }

    /// Makes sure that all that write do so in the same place: that they see what the first has left there. All ranks call it
    /// together.
    ///
    /// # Errors
    /// [`Error::World`], on all of them, names the first rank that does not.
    pub fn check_shared(&self, writer: &Writer, world: &World, device: Device) -> Result<(), Error> {
        let writes = writer.rank == 0 || writer.others.contains(&writer.rank);
        let seen = !writes || world.size() == 1 || self.sees(&writer.attempt);
        let seen = world.texts(if seen { "seen" } else { "" }, device)?;
        let Some(rank) = seen.iter().position(String::is_empty) else { return Ok(()) };
        Err(Error::World(format!(
            "rank {rank} does not see what rank 0 has written to {}: set checkpoint.uri to a place that all nodes share, or \
             checkpoint.writers = \"first\"",
            self.location.uri_of(RUN)
        )))
    }

    /// Whether the first rank's word of this attempt is there, or comes soon: a shared folder may show it late.
    fn sees(&self, attempt: &str) -> bool {
        let until = Instant::now() + SHOWN_WITHIN;
        loop {
            let word = self.location.get_if_present(RUN).ok().flatten();
            let word = word.and_then(|word| serde_json::from_slice::<serde_json::Value>(&word).ok());
            let seen = word.is_some_and(|word| word["attempt"] == attempt);
            if seen || Instant::now() > until {
                return seen;
            }
            std::thread::sleep(SHOWN_WITHIN / 100);
        }
    }

    /// Steps with a committed checkpoint, ascending.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn steps(&self) -> Result<Vec<u64>, Error> {
        let mut steps: Vec<u64> =
            self.location.list("")?.iter().filter_map(|key| committed_step(key)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn commit(&self, step: u64) -> Result<Commit, Error> {
        let key = commit_key(step);
        let bytes = self.location.get(&key)?;
        let broken = |e: serde_json::Error| self.error(&key, format!("not a commit: {e}"));
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(broken)?;
        if value["format"] != FORMAT {
            let message = format!("format {} is not known to this version of Tidemill", value["format"]);
            return Err(self.error(&key, message));
        }
        serde_json::from_value(value).map_err(broken)
    }

    fn shard(&self, step: u64, shard: &Shard) -> Result<bytes::Bytes, Error> {
        let bytes = self.location.get(&shard.file)?;
        if !shard.is(&bytes) {
            let message = format!(
                "the shard's checksum is wrong; remove {} to start from the one before",
                folder(step)
            );
            return Err(self.error(&shard.file, message));
        }
        Ok(bytes)
    }

    fn put_json(&self, key: &str, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(value).map_err(|e| self.error(key, e.to_string()))?;
        Ok(self.location.put(key, text.into())?)
    }

    fn error(&self, name: &str, message: String) -> Error {
        Error::Checkpoint { path: self.path.join(name), message }
    }
}

fn folder(step: u64) -> String {
    format!("step-{step:08}")
}

fn commit_key(step: u64) -> String {
    format!("{}/commit.json", folder(step))
}

/// The step that an object is of.
fn step_of(key: &str) -> Option<u64> {
    key.split('/').find_map(|part| part.strip_prefix("step-"))?.parse().ok()
}

fn committed_step(key: &str) -> Option<u64> {
    key.ends_with("/commit.json").then(|| step_of(key)).flatten()
}

#[cfg(test)]
mod tests;
