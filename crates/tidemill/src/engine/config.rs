//! `[engine]`: which engine runs the stages, and with how much of the machine or cluster.

use std::collections::BTreeMap;

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::engine::machine_resources::available_and_total_memory;
use crate::engine::worker_count::WorkerCount;

/// The least default of `engine.memory`, in bytes.
const MIN_DEFAULT_MEMORY: u64 = 1 << 30;

/// `[engine]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Which engine runs the stages.
    pub kind: EngineKind,
    /// Where the models run: `auto` (every GPU, else the CPU), `cpu`, `cuda` (every GPU) or
    /// `cuda:1`.
    pub device: String,
    /// Memory for all batches in flight together, as `"4 GiB"` or in bytes: batches as read,
    /// prepared and encoded, and batches that wait. Models, libraries and one decoded image per
    /// worker come on top. The default is half of the machine's memory, divided evenly among the
    /// ranks of a machine, and at least 1 GiB.
    #[serde(deserialize_with = "deserialize_size")]
    pub memory: Option<ByteSize>,
    /// The run stops when more than this share of the rows read is unreadable. The share is checked
    /// from 1,000 rows on, or when all rows are read.
    pub max_bad_fraction: f64,
    /// `[engine.read]`: reading ahead.
    pub read: ReadWorkers,
    /// `[engine.prepare]`: decoding, cropping, tokenizing.
    pub prepare: PrepareWorkers,
    /// `[engine.encode]`: the VAE and the text encoder.
    pub encode: EncodeWorkers,
    /// `[engine.train]`: on Ray, the training workers. Without this section, training stays on the
    /// machine where the command runs.
    pub train: Option<WorkerPool>,
    /// `[engine.eval]`: on Ray, the evaluators. Without this section, evaluation stays on the machine
    /// where the command runs.
    pub eval: Option<WorkerPool>,
    /// `[engine.ray]`: which cluster.
    pub ray: RayConfig,
}

/// Engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Threads of one process.
    #[default]
    Local,
    /// Tasks and actors of a Ray cluster. Every node must have this package, and must reach source,
    /// models and output under the paths in the run file.
    Ray,
}

/// `[engine.ray]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RayConfig {
    /// Address of the cluster, as `ray.init` takes it: `auto`, `host:port` or `ray://host:port`;
    /// `local` starts a cluster on this machine. Without it, the variable `RAY_ADDRESS` counts,
    /// then a cluster that runs on this machine, then `local`.
    pub address: Option<String>,
    /// Environment variables of all workers, such as those of NCCL and libfabric.
    pub env: BTreeMap<String, String>,
}

/// `[engine.read]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReadWorkers {
    /// Units read at the same time; 0 means two per encoder. More readers hide the latency of a
    /// slow source.
    pub workers: usize,
}

/// `[engine.prepare]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareWorkers {
    /// Worker threads, or a range such as `"2..8"` in which their number follows the encoders'
    /// input queue; 0 means one per core. On Ray: the most tasks at a time; 0 means as many as fit.
    pub workers: WorkerCount,
    /// On Ray: CPUs of a task.
    pub cpus: f64,
}

impl Default for PrepareWorkers {
    fn default() -> Self {
        Self { workers: WorkerCount::default(), cpus: 1.0 }
    }
}

/// `[engine.encode]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeWorkers {
    /// Encoders per device, each with its own copy of the models. On Ray: encoders in all, or a
    /// range such as `"1..40"` in which their number follows the backlog.
    pub workers: WorkerCount,
    /// Threads that libtorch uses for one operation on the CPU; 0 means one per core, on Ray one
    /// per CPU of an encoder. The bytes of encoded units may depend on it.
    pub threads: usize,
    /// On Ray: CPUs of an encoder.
    pub cpus: f64,
    /// On Ray: GPUs of an encoder. The default is 1, or 0 with `engine.device = "cpu"`.
    pub gpus: Option<f64>,
    /// On Ray: the GPU type of the nodes that may have encoders, as in `ray.util.accelerators`,
    /// such as `A10G`.
    pub accelerator: Option<String>,
}

impl Default for EncodeWorkers {
    fn default() -> Self {
        Self { workers: WorkerCount::fixed(1), threads: 0, cpus: 1.0, gpus: None, accelerator: None }
    }
}

/// `[engine.train]` and `[engine.eval]`: workers on Ray.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerPool {
    /// Number of workers, or a range such as `"24..32"`. Training restarts with as many of them as
    /// fit; evaluation takes those that find room.
    pub workers: WorkerCount,
    /// CPUs of a worker.
    pub cpus: f64,
    /// GPUs of a worker. The default is 1, or 0 with `engine.device = "cpu"`.
    pub gpus: Option<f64>,
    /// The GPU type of the nodes that may have workers, as in `ray.util.accelerators`, such as
    /// `A100`.
    pub accelerator: Option<String>,
}

impl Default for WorkerPool {
    fn default() -> Self {
        Self { workers: WorkerCount::fixed(1), cpus: 1.0, gpus: None, accelerator: None }
    }
}

/// Reads bytes as a number, or as text with a unit.
fn deserialize_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    let wrong = |_| de::Error::custom("must be bytes, such as \"4 GiB\" or 4294967296");
    ByteSize::deserialize(deserializer).map(Some).map_err(wrong)
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kind: EngineKind::Local,
            device: "auto".into(),
            memory: None,
            max_bad_fraction: 0.1,
            read: ReadWorkers::default(),
            prepare: PrepareWorkers::default(),
            encode: EncodeWorkers::default(),
            train: None,
            eval: None,
            ray: RayConfig::default(),
        }
    }
}

/// A key of the section, and what is wrong with its value.
type InvalidKey = (&'static str, String);

impl EngineConfig {
    /// Bytes that the batches in flight may take.
    pub fn memory_bytes(&self) -> u64 {
        let half_per_rank = || {
            let total = available_and_total_memory().map_or(0, |(_, total)| total);
            total / 2 / tidemill_io::processes_on_machine() as u64
        };
        self.memory.map_or_else(|| half_per_rank().max(MIN_DEFAULT_MEMORY), |memory| memory.as_u64())
    }

    /// Units read at the same time, for this number of encoders.
    pub fn reader_count(&self, encoders: usize) -> usize {
        if self.read.workers == 0 { 2 * encoders } else { self.read.workers }
    }

    /// GPUs of a worker on Ray that runs models: as `given` in the run file, else 1, or 0 if models
    /// run on the CPU.
    pub fn gpus_per_worker(&self, given: Option<f64>) -> f64 {
        given.unwrap_or(if self.device == "cpu" { 0.0 } else { 1.0 })
    }

    /// Checks the section on its own.
    ///
    /// # Errors
    /// The first key with a wrong value.
    pub(crate) fn validate(&self) -> Result<(), InvalidKey> {
        if !(0.0..=1.0).contains(&self.max_bad_fraction) {
            return Err(("engine.max_bad_fraction", "must lie between 0 and 1".into()));
        }
        self.validate_workers()?;
        self.validate_amounts()?;
        self.validate_device()
    }

    fn validate_workers(&self) -> Result<(), InvalidKey> {
        let encoders = self.encode.workers;
        if encoders.min() == 0 {
            return Err(("engine.encode.workers", "must be at least 1".into()));
        }
        if self.kind == EngineKind::Local && encoders.min() != encoders.max() {
            let message = "must be one number here; a range is for engine.kind = \"ray\"";
            return Err(("engine.encode.workers", message.into()));
        }
        let local = self.kind == EngineKind::Local;
        if let Some(train) = &self.train {
            if train.workers.min() == 0 {
                return Err(("engine.train.workers", "must be at least 1".into()));
            }
            if local {
                let message = "needs engine.kind = \"ray\"; on one machine, use `tidemill train --workers N`";
                return Err(("engine.train", message.into()));
            }
        }
        if let Some(eval) = &self.eval {
            if eval.workers.min() == 0 {
                return Err(("engine.eval.workers", "must be at least 1".into()));
            }
            if local {
                let message =
                    "needs engine.kind = \"ray\"; on one machine, start `tidemill eval` several times";
                return Err(("engine.eval", message.into()));
            }
        }
        Ok(())
    }

    fn validate_amounts(&self) -> Result<(), InvalidKey> {
        let train = self.train.clone().unwrap_or_default();
        let eval = self.eval.clone().unwrap_or_default();
        let amounts = [
            ("engine.eval.cpus", eval.cpus),
            ("engine.eval.gpus", eval.gpus.unwrap_or(0.0)),
            ("engine.train.cpus", train.cpus),
            ("engine.train.gpus", train.gpus.unwrap_or(0.0)),
            ("engine.prepare.cpus", self.prepare.cpus),
            ("engine.encode.cpus", self.encode.cpus),
            ("engine.encode.gpus", self.encode.gpus.unwrap_or(0.0)),
        ];
        match amounts.into_iter().find(|(_, amount)| !(0.0..1e6).contains(amount)) {
            Some((key, _)) => Err((key, "must be a number of at least 0".into())),
            None => Ok(()),
        }
    }

    fn validate_device(&self) -> Result<(), InvalidKey> {
        let device = self.device.as_str();
        let index = device.strip_prefix("cuda:").map(str::parse::<usize>);
        if ["auto", "cpu", "cuda"].contains(&device) || matches!(index, Some(Ok(_))) {
            return Ok(());
        }
        let message =
            format!("\"{device}\" is no device; give \"auto\", \"cpu\", \"cuda\" or one GPU as \"cuda:0\"");
        Err(("engine.device", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_text_or_bytes() {
        let memory = |value: &str| -> Result<u64, String> {
            let config: Result<EngineConfig, _> = toml::from_str(&format!("memory = {value}"));
            config.map(|config| config.memory_bytes()).map_err(|error| error.message().to_string())
        };
        assert_eq!(memory("'4 GiB'"), Ok(4 << 30));
        assert_eq!(memory("'1.5MiB'"), Ok(3 << 19));
        assert_eq!(memory("1000"), Ok(1000));
        for value in ["'much'", "-1", "true"] {
            assert!(memory(value).unwrap_err().contains("must be bytes"), "{value}");
        }
        assert!(EngineConfig::default().memory_bytes() >= MIN_DEFAULT_MEMORY);
    }
}
