//! Checkpoints on object storage: each rank writes its shard under a name of its own, then the first rank, when all are there, one
//! commit object, put only if absent. A checkpoint without its commit does not exist, so a crash at any moment leaves the one
//! before intact. Any number of ranks loads what any other number wrote.
//!
//! ```text
//! <uri>/step-00001000/<attempt>/rank-0-of-4.safetensors    master, exp_avg, exp_avg_sq, ema: f32, as `snapshot` says
//! <uri>/step-00001000/<attempt>/rank-1-of-4.json           [`Shard`]: that rank's is complete
//! <uri>/step-00001000/commit.json                          [`Commit`]
//! <uri>/run.json                                           what the run is made of, for people
//! <uri>/start.json                                         which attempt began last: all ranks must see it
//! <uri>/owner.json                                         which one trains, so that an older one ends
//! <uri>/probe                                              put as a commit is when a run starts, and removed again
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_io::Location;
use tidemill_store::stream::SnapshotId;

pub use self::save::Writer;
use crate::Error;
use crate::checkpoint::state_copy::Parameter;
use crate::config::CheckpointConfig;
use crate::parallel::world::World;

mod load;
mod owner;
mod save;

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps done, over all phases.
    pub step: u64,
    /// Samples trained on.
    pub samples: u64,
    /// The phase that `stream` belongs to.
    pub phase: usize,
    /// Where the data go on, as [`crate::BatchStream::state`] says; `None` before the first batch.
    pub stream: Option<Value>,
    /// Losses of the last steps.
    pub recent_losses: VecDeque<f64>,
    /// What the run is made of: model, schedule, dataset, seed. A checkpoint of another is refused.
    pub identity: Value,
    /// `[train]` of the run file, which may change from one start to the next.
    pub settings: Value,
    /// Which held-out rows a validation takes.
    #[serde(default)]
    pub held_out: BTreeMap<String, SnapshotId>,
}

impl Progress {
    /// The beginning of a run.
    pub fn start(identity: Value, settings: Value) -> Self {
        Self {
            step: 0,
            samples: 0,
            phase: 0,
            stream: None,
            recent_losses: VecDeque::new(),
            identity,
            settings,
            held_out: BTreeMap::new(),
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

/// The keys of the objects that say what run the checkpoints are of, and which attempt at it began last.
const RUN: &str = "run.json";
const START: &str = "start.json";

/// What proves that commits can be put.
const PROBE: &str = "probe";

/// How late a shared folder may show on one node what was written on another.
const SHOWN_WITHIN: Duration = Duration::from_secs(20);

/// The checkpoints of one run.
#[derive(Debug)]
pub struct Checkpoints {
    location: Location,
    /// For messages.
    path: PathBuf,
    keep: usize,
    keep_every: Option<u64>,
}

impl Checkpoints {
    /// The checkpoints at `config.uri`, or in `checkpoints/` under `output`.
    ///
    /// # Errors
    /// If the place cannot be reached.
    pub fn open(config: &CheckpointConfig, output: &Path) -> Result<Self, Error> {
        let uri = config.uri.clone().unwrap_or_else(|| output.join("checkpoints").display().to_string());
        let location = Location::open(&uri)?;
        Ok(Self {
            location,
            path: uri.into(),
            keep: config.keep.max(1),
            keep_every: config.keep_every.filter(|every| *every > 0),
        })
    }

    /// Makes sure that checkpoints can be written and committed, and leaves word of this start.
    ///
    /// # Errors
    /// If the store cannot be written, or puts nothing only if absent, as a file system without hard links.
    pub fn announce(&self, writer: &Writer) -> Result<(), Error> {
        self.put_json(START, &serde_json::json!({ "attempt": writer.attempt }))?;
        // One that is there, of a process that was killed or starts just now, was put as a commit would be.
        self.location.put_if_absent(PROBE, Bytes::from_static(b"{}"))?;
        // It may be gone, and a store that deletes nothing takes checkpoints all the same.
        let _ = self.location.delete(PROBE);
        Ok(())
    }

    /// Makes sure that all ranks read and write in the same place: that they see what the first has announced. All ranks call it
    /// together, before any of them has looked for checkpoints: a shared folder may not show for long what was not there before.
    ///
    /// # Errors
    /// [`Error::World`] on the first rank that does not; see [`World::together`].
    pub fn check_shared(&self, writer: &Writer, world: &World) -> Result<(), Error> {
        let seen = if world.is_first() { Ok(()) } else { self.look_for(&writer.attempt) };
        world.together(seen.map_err(|problem| Error::World(format!("rank {} {problem}", world.rank()))))
    }

    /// What is in the way of seeing the first rank's word of this attempt, if that does not come in time.
    fn look_for(&self, attempt: &str) -> Result<(), String> {
        let until = Instant::now() + SHOWN_WITHIN;
        loop {
            let word = self.location.get_if_present(START);
            let attempt_of =
                |word: &Bytes| Some(serde_json::from_slice::<Value>(word).ok()?["attempt"].take());
            let seen = word.as_ref().ok().and_then(Option::as_ref).and_then(attempt_of);
            if seen.is_some_and(|seen| seen == attempt) {
                return Ok(());
            }
            if Instant::now() > until {
                let place = self.location.uri_of(START);
                return Err(match word {
                    Err(error) => format!("cannot read what rank 0 has written: {error}"),
                    Ok(_) => format!(
                        "does not find {place}, which rank 0 has just written: set checkpoint.uri to a place that all nodes share"
                    ),
                });
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
        let value: Value = serde_json::from_slice(&bytes).map_err(broken)?;
        if value["format"] != FORMAT {
            let message = format!("format {} is not known to this version of Tidemill", value["format"]);
            return Err(self.error(&key, message));
        }
        serde_json::from_value(value).map_err(broken)
    }

    fn shard(&self, step: u64, shard: &Shard) -> Result<Bytes, Error> {
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

/// The step that an object is of. What lies deeper may be another run's.
fn step_of(key: &str) -> Option<u64> {
    key.split('/').next()?.strip_prefix("step-")?.parse().ok()
}

fn committed_step(key: &str) -> Option<u64> {
    step_of(key).filter(|step| key == commit_key(*step))
}

pub(crate) mod background_writer;
pub(crate) mod differences;
pub(crate) mod run_identity;
pub(crate) mod state_copy;
#[cfg(test)]
mod tests;
