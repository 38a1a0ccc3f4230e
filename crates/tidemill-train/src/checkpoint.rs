//! Checkpoints on object storage: each rank writes its shard under a name of its own, then the first rank, when all are there, one
//! commit object, put only if absent. A checkpoint without its commit does not exist, so a crash at any moment leaves the one
//! before intact. Any number of ranks loads what any other number wrote.
//!
//! ```text
//! <uri>/step-00001000/<attempt>/rank-0-of-4.safetensors    master, exp_avg, exp_avg_sq, ema: f32, as `snapshot` says
//! <uri>/step-00001000/<attempt>/rank-1-of-4.json           [`Shard`]: that rank's is complete
//! <uri>/step-00001000/commit.json                          [`Commit`]
//! <uri>/run.json                                           what the run is made of, for people
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tidemill_io::Location;
use tidemill_torch::guard;

use crate::Error;
use crate::config::{CheckpointConfig, Writers};
use crate::optimizer::Optimizer;
use crate::snapshot::{Filling, Parameter, Snapshot, contents, starts};
use crate::world::World;

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

/// The key of the object that says what run the checkpoints are of.
const RUN: &str = "run.json";

/// Pauses in which the first rank looks for the others' shards.
const POLL: Duration = Duration::from_millis(100);

/// The checkpoints of one run.
#[derive(Debug)]
pub struct Checkpoints {
    location: Location,
    /// For messages.
    path: PathBuf,
    keep: usize,
}

/// Who writes: which rank, of how many, who the others are, and a name that they share and nobody else has.
#[derive(Clone, Debug)]
pub struct Writer {
    rank: usize,
    ranks: usize,
    others: Vec<usize>,
    attempt: String,
}

impl Writer {
    /// One of the ranks of `world`; all of them call it together.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn new(world: &World, writers: Writers, device: Device) -> Result<Self, Error> {
        let attempt = world.texts(&unique(), device)?.swap_remove(0);
        let others = world.writers(writers).split_off(1);
        Ok(Self { rank: world.rank(), ranks: world.size(), others, attempt })
    }

    fn name(&self, step: u64, rank: usize, extension: &str) -> String {
        format!("{}/{}/rank-{rank}-of-{}.{extension}", folder(step), self.attempt, self.ranks)
    }
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
    pub fn prepare(&self, identity: &serde_json::Value) -> Result<(), Error> {
        self.put_json(RUN, identity)
    }

    /// Saves one rank's share of a state. The first rank commits it when all have, as long as it may `wait` for them, then
    /// removes the oldest beyond `keep`.
    ///
    /// # Errors
    /// If the store cannot be written, or the others' shards do not come.
    pub fn save(&self, snapshot: &Snapshot, writer: &Writer, wait: &dyn Fn() -> bool) -> Result<(), Error> {
        let step = snapshot.step();
        if writer.rank == 0 && self.steps()?.contains(&step) {
            if self.is_intact(step)? {
                return Ok(());
            }
            // It was passed over when the run began, and would be again.
            self.location.delete(&commit_key(step))?;
        }
        let file = writer.name(step, writer.rank, "safetensors");
        let bytes = snapshot.serialize().map_err(|e| self.error(&file, e.to_string()))?;
        let shard = Shard {
            file,
            bytes: bytes.len(),
            crc32c: crc32c::crc32c(&bytes),
            ranges: snapshot.ranges.clone(),
        };
        self.location.put(&shard.file, bytes.into())?;
        if writer.rank > 0 {
            return self.put_json(&writer.name(step, writer.rank, "json"), &shard);
        }
        let mut shards = vec![shard];
        for rank in &writer.others {
            shards.push(self.shard_of(*rank, step, writer, wait)?);
        }
        let commit = Commit {
            format: FORMAT,
            progress: snapshot.progress.clone(),
            ema: snapshot.ema,
            parameters: snapshot.parameters.clone(),
            shards,
        };
        let text = serde_json::to_vec(&commit).map_err(|e| self.error(&folder(step), e.to_string()))?;
        self.location.put_if_absent(&commit_key(step), text.into())?;
        self.retain()
    }

    /// What another rank says of its shard, once it does.
    fn shard_of(
        &self,
        rank: usize,
        step: u64,
        writer: &Writer,
        wait: &dyn Fn() -> bool,
    ) -> Result<Shard, Error> {
        let key = writer.name(step, rank, "json");
        loop {
            if let Some(bytes) = self.location.get_if_present(&key)? {
                return serde_json::from_slice(&bytes).map_err(|e| self.error(&key, e.to_string()));
            }
            if !wait() {
                return Err(self.error(&key, "that rank has not written its shard".into()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Loads the newest usable checkpoint into `optimizer`; `None` if there is none. All ranks call it together, and
    /// load the same.
    ///
    /// # Errors
    /// If the newest is of another run, or none of those there can be read.
    pub fn restore(
        &self,
        optimizer: &mut Optimizer,
        identity: &serde_json::Value,
        world: &World,
        device: Device,
    ) -> Result<Option<Progress>, Error> {
        let seen = self.steps()?;
        let seen = serde_json::to_string(&seen).unwrap_or_default();
        let steps: Vec<u64> = serde_json::from_str(&world.texts(&seen, device)?[0]).unwrap_or_default();
        let mut failure = None;
        for step in steps.into_iter().rev() {
            let loaded = self.try_restore(step, optimizer, identity);
            if let Err(error @ Error::OtherRun { .. }) = loaded {
                return Err(error);
            }
            // What one rank cannot read, none goes on from.
            let problem = loaded.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let problems = world.texts(&problem, device)?;
            let Some(problem) = problems.into_iter().find(|problem| !problem.is_empty()) else {
                optimizer.loaded()?;
                return loaded.map(Some);
            };
            if world.is_first() {
                tracing::warn!("{problem}; trying the checkpoint before it");
            }
            let elsewhere = || Error::Checkpoint { path: self.path.join(folder(step)), message: problem };
            failure = Some(loaded.err().unwrap_or_else(elsewhere));
        }
        failure.map_or(Ok(None), Err)
    }

    /// The newest checkpoint's weights by parameter name, f32: averaged where averaging had begun
    /// and `averaged` is set, else the master weights; with the step they are of.
    ///
    /// # Errors
    /// If there is no checkpoint, or it cannot be read.
    pub fn weights(&self, averaged: bool) -> Result<(u64, Vec<(String, Tensor)>), Error> {
        let Some(step) = self.steps()?.pop() else {
            let message = "no committed checkpoint here; run `tidemill train` first".to_string();
            return Err(Error::Checkpoint { path: self.path.clone(), message });
        };
        let commit = self.commit(step)?;
        let buffer = if averaged && commit.ema { "ema" } else { "master" };
        let (numbers, all) = starts(&commit.parameters);
        let (mut values, mut found) = (vec![0u8; 4 * all], 0);
        for shard in &commit.shards {
            let bytes = self.shard(step, shard)?;
            let tensors = self.parse(&shard.file, &bytes)?;
            let ranges = contents(&shard.ranges, &tensors, buffer).map_err(|m| self.error(&shard.file, m))?;
            for (elements, bytes) in ranges {
                let place = values.get_mut(4 * elements.start..4 * elements.end);
                let beyond =
                    || self.error(&shard.file, format!("it has values of no parameter: {elements:?}"));
                place.ok_or_else(beyond)?.copy_from_slice(bytes);
                found += elements.len();
            }
        }
        if found != all {
            let message = format!("its shards have {found} of {all} values");
            return Err(self.error(&folder(step), message));
        }
        let tensor = |parameter: &Parameter| {
            let numbers = &numbers[parameter.name.as_str()];
            let bytes = &values[4 * numbers.start..4 * numbers.end];
            let tensor = guard(|| Tensor::from_data_size(bytes, &parameter.shape, Kind::Float))?;
            Ok((parameter.name.clone(), tensor))
        };
        Ok((step, commit.parameters.iter().map(tensor).collect::<Result<_, Error>>()?))
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

    /// Reads those shards that have something of this rank's parts.
    fn try_restore(
        &self,
        step: u64,
        optimizer: &mut Optimizer,
        identity: &serde_json::Value,
    ) -> Result<Progress, Error> {
        let commit = self.commit(step)?;
        self.check_identity(step, &commit.progress.identity, identity)?;
        optimizer.prepare_to_load(commit.ema);
        let fail = |message| self.error(&folder(step), message);
        let mut filling = Filling::new(optimizer, &commit.parameters).map_err(fail)?;
        for shard in commit.shards.iter().filter(|shard| filling.wants(&shard.ranges)).collect::<Vec<_>>() {
            let bytes = self.shard(step, shard)?;
            let tensors = self.parse(&shard.file, &bytes)?;
            filling.take(&shard.ranges, &tensors).map_err(|m| self.error(&shard.file, m))?;
        }
        filling.finish().map_err(fail)?;
        Ok(commit.progress)
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

    /// Whether all shards of a checkpoint are there and as they were written.
    ///
    /// # Errors
    /// If the store cannot be read, which says nothing of the checkpoint.
    fn is_intact(&self, step: u64) -> Result<bool, Error> {
        let commit = match self.commit(step) {
            Ok(commit) => commit,
            Err(error @ Error::Storage(_)) => return Err(error),
            Err(_) => return Ok(false),
        };
        for shard in &commit.shards {
            if !self.location.get_if_present(&shard.file)?.is_some_and(|bytes| shard.is(&bytes)) {
                return Ok(false);
            }
        }
        Ok(true)
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

    fn parse<'a>(&self, file: &str, bytes: &'a [u8]) -> Result<SafeTensors<'a>, Error> {
        SafeTensors::deserialize(bytes).map_err(|e| self.error(file, e.to_string()))
    }

    fn check_identity(
        &self,
        step: u64,
        stored: &serde_json::Value,
        expected: &serde_json::Value,
    ) -> Result<(), Error> {
        let Some(expected) = expected.as_object() else { return Ok(()) };
        for (key, value) in expected {
            if stored.get(key) != Some(value) {
                return Err(Error::OtherRun { path: self.path.join(folder(step)), key: key.clone() });
            }
        }
        Ok(())
    }

    /// Removes the oldest checkpoints, and what is left of those that were never committed.
    fn retain(&self) -> Result<(), Error> {
        let keys = self.location.list("")?;
        let mut steps: Vec<u64> = keys.iter().filter_map(|key| committed_step(key)).collect();
        steps.sort_unstable();
        let kept = &steps[steps.len().saturating_sub(self.keep)..];
        let newest = kept.last().copied().unwrap_or(0);
        let old = |key: &&String| step_of(key).is_some_and(|step| step < newest && !kept.contains(&step));
        // The commits first: from then on the checkpoint does not exist.
        let (commits, others): (Vec<&String>, Vec<&String>) =
            keys.iter().filter(old).partition(|key| committed_step(key).is_some());
        for key in commits.into_iter().chain(others) {
            self.location.delete(key)?;
        }
        Ok(())
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

/// A name that no other attempt has.
fn unique() -> String {
    let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos());
    format!("{:x}-{:x}", std::process::id(), nanos)
}

#[cfg(test)]
mod tests;
