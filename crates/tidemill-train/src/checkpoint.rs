//! Checkpoints on object storage: first the shard with the optimizer's tensors under a name of its
//! own, then one commit object, put only if absent. A checkpoint without its commit does not exist,
//! so a crash at any moment leaves the one before intact.
//!
//! ```text
//! <uri>/step-00001000/rank-0-of-1-<attempt>.safetensors    <buffer>.<parameter>, f32
//! <uri>/step-00001000/commit.json                          [`Commit`]
//! <uri>/run.json                                           what the run is made of, for people
//! ```

use crate::Error;
use crate::config::CheckpointConfig;
use crate::optimizer::Optimizer;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tch::{Kind, Tensor};
use tidemill_io::Location;
use tidemill_store::stream::StreamState;

/// Where a run stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps done, over all phases.
    pub step: u64,
    /// Samples trained on.
    pub samples: u64,
    /// The phase that `stream` belongs to.
    pub phase: usize,
    /// Where the stream goes on; `None` before the first batch.
    pub stream: Option<StreamState>,
    /// What the run is made of: model, schedule, dataset, seed. A checkpoint of another is refused.
    pub identity: serde_json::Value,
}

impl Progress {
    /// The beginning of a run.
    pub fn start(identity: serde_json::Value) -> Self {
        Self { step: 0, samples: 0, phase: 0, stream: None, identity }
    }
}

/// The commit object.
#[derive(Debug, Serialize, Deserialize)]
struct Commit {
    format: u32,
    progress: Progress,
    /// Whether the shards hold averaged weights.
    ema: bool,
    shards: Vec<Shard>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Shard {
    file: String,
    bytes: usize,
    crc32c: u32,
}

const FORMAT: u32 = 1;

/// The key of the object that says what run the checkpoints are of.
const RUN: &str = "run.json";

/// A copy of a run's state in memory of the host.
pub struct Snapshot {
    progress: Progress,
    /// Whether there are averaged weights.
    ema: bool,
    /// Name, shape and f32 values of each tensor.
    tensors: Vec<(String, Vec<usize>, Vec<u8>)>,
}

impl Snapshot {
    /// Copies the state after `progress.step`; waits for the device.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn take(optimizer: &Optimizer, progress: &Progress) -> Result<Self, Error> {
        let state = optimizer.state();
        let ema = state.iter().any(|(name, _)| name.starts_with("ema."));
        let copy = |(name, tensor): (String, Tensor)| {
            let bytes = tidemill_torch::guard(|| {
                let flat = tensor.to_device(tch::Device::Cpu).contiguous();
                let mut bytes = vec![0u8; flat.numel() * 4];
                flat.copy_data_u8(&mut bytes, flat.numel());
                bytes
            })?;
            let shape = tensor.size().iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
            Ok((name, shape, bytes))
        };
        let tensors = state.into_iter().map(copy).collect::<Result<_, Error>>()?;
        Ok(Self { progress: progress.clone(), ema, tensors })
    }

    /// The step it was taken after.
    pub fn step(&self) -> u64 {
        self.progress.step
    }

    /// As safetensors.
    fn serialize(&self) -> Result<Vec<u8>, String> {
        let views = self.tensors.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|e| e.to_string())?;
            Ok((name.as_str(), view))
        });
        let views = views.collect::<Result<Vec<_>, String>>()?;
        safetensors::serialize(views, None).map_err(|e| e.to_string())
    }
}

/// The checkpoints of one run.
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
    pub fn prepare(&self, identity: &serde_json::Value) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(identity).map_err(|e| self.error(RUN, e.to_string()))?;
        Ok(self.location.put(RUN, text.into())?)
    }

    /// Saves and commits a state; then removes the oldest beyond `keep`.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn save(&self, snapshot: &Snapshot) -> Result<(), Error> {
        let progress = &snapshot.progress;
        let folder = folder(progress.step);
        if self.steps()?.contains(&progress.step) {
            return Ok(());
        }
        let bytes = snapshot.serialize().map_err(|m| self.error(&folder, m))?;
        let file = format!("{folder}/rank-0-of-1-{}.safetensors", attempt());
        let shard = Shard { file: file.clone(), bytes: bytes.len(), crc32c: crc32c::crc32c(&bytes) };
        self.location.put(&file, bytes.into())?;
        let commit =
            Commit { format: FORMAT, progress: progress.clone(), ema: snapshot.ema, shards: vec![shard] };
        let text = serde_json::to_vec_pretty(&commit).map_err(|e| self.error(&folder, e.to_string()))?;
        self.location.put_if_absent(&commit_key(progress.step), text.into())?;
        self.retain()
    }

    /// Loads the newest usable checkpoint into `optimizer`; `None` if there is none.
    ///
    /// # Errors
    /// If the newest is of another run, or none of those there can be read.
    pub fn restore(
        &self,
        optimizer: &mut Optimizer,
        identity: &serde_json::Value,
    ) -> Result<Option<Progress>, Error> {
        let mut failure = None;
        for step in self.steps()?.into_iter().rev() {
            let commit = self.commit(step)?;
            self.check_identity(step, &commit.progress.identity, identity)?;
            match self.load(&commit, optimizer) {
                Ok(()) => return Ok(Some(commit.progress)),
                Err(error) => {
                    tracing::warn!("{error}; trying the checkpoint before it");
                    failure = Some(error);
                }
            }
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
        let prefix = if averaged && commit.ema { "ema." } else { "master." };
        let mut weights = Vec::new();
        for shard in &commit.shards {
            let bytes = self.shard(step, shard)?;
            for (name, view) in self.parse(&shard.file, &bytes)?.tensors() {
                if let Some(name) = name.strip_prefix(prefix) {
                    weights.push((name.to_string(), tensor(&view)?));
                }
            }
        }
        Ok((step, weights))
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

    fn load(&self, commit: &Commit, optimizer: &mut Optimizer) -> Result<(), Error> {
        let step = commit.progress.step;
        optimizer.prepare_to_load(commit.ema);
        let mut missing: std::collections::HashMap<String, Tensor> = optimizer.state().into_iter().collect();
        for shard in &commit.shards {
            let bytes = self.shard(step, shard)?;
            for (name, view) in self.parse(&shard.file, &bytes)?.tensors() {
                let Some(mut target) = missing.remove(&name) else {
                    let message = format!("{name} is not a tensor of this model");
                    return Err(self.error(&shard.file, message));
                };
                let stored = tensor(&view)?;
                if stored.size() != target.size() {
                    let message = format!("{name} is {:?}, expected {:?}", stored.size(), target.size());
                    return Err(self.error(&shard.file, message));
                }
                tidemill_torch::guard(|| target.copy_(&stored))?;
            }
        }
        if let Some(name) = missing.keys().min() {
            return Err(
                self.error(&folder(step), format!("{name} and {} more are missing", missing.len() - 1))
            );
        }
        Ok(tidemill_torch::guard(|| optimizer.loaded())?)
    }

    fn commit(&self, step: u64) -> Result<Commit, Error> {
        let key = commit_key(step);
        let bytes = self.location.get(&key)?;
        let commit: Commit =
            serde_json::from_slice(&bytes).map_err(|e| self.error(&key, format!("not a commit: {e}")))?;
        if commit.format != FORMAT {
            let message = format!("format {} is not known to this version of Tidemill", commit.format);
            return Err(self.error(&key, message));
        }
        Ok(commit)
    }

    fn shard(&self, step: u64, shard: &Shard) -> Result<bytes::Bytes, Error> {
        let bytes = self.location.get(&shard.file)?;
        if bytes.len() != shard.bytes || crc32c::crc32c(&bytes) != shard.crc32c {
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
                let message = format!(
                    "it was made with another {key}; give the run another output, or remove the checkpoints"
                );
                return Err(self.error(&folder(step), message));
            }
        }
        Ok(())
    }

    fn retain(&self) -> Result<(), Error> {
        let steps = self.steps()?;
        for step in &steps[..steps.len().saturating_sub(self.keep)] {
            let commit = self.commit(*step)?;
            // The commit first: from then on the checkpoint does not exist.
            self.location.delete(&commit_key(*step))?;
            for shard in &commit.shards {
                self.location.delete(&shard.file)?;
            }
        }
        Ok(())
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

fn committed_step(key: &str) -> Option<u64> {
    key.strip_suffix("/commit.json")?.rsplit('/').next()?.strip_prefix("step-")?.parse().ok()
}

/// A name that no other attempt at the same step has.
fn attempt() -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    format!("{:x}-{:x}", std::process::id(), nanos)
}

fn tensor(view: &TensorView) -> Result<Tensor, Error> {
    let shape: Vec<i64> = view.shape().iter().map(|n| i64::try_from(*n).unwrap_or(0)).collect();
    Ok(tidemill_torch::guard(|| Tensor::from_data_size(view.data(), &shape, Kind::Float))?)
}
