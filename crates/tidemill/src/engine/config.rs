//! `[engine]`: who does the work and with how much of the machine.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::machine_resources::{cores, memory};

/// The least that half of a small machine's memory is taken for.
const LEAST_MEMORY: u64 = 1 << 30;

/// `[engine]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// What runs the stages.
    pub kind: Kind,
    /// Where the models run: `auto` (every GPU, else the CPU), `cpu`, `cuda` (every GPU) or `cuda:1`.
    pub device: String,
    /// What the batches in flight may take together, as `"4 GiB"` or in bytes: as read, prepared, encoded and waiting.
    /// Models, libraries and one unpacked image per worker come on top. Half of the machine's memory, of which ranks of a machine
    /// have equal parts, and at least 1 GiB, if not given.
    #[serde(deserialize_with = "size")]
    pub memory: Option<ByteSize>,
    /// The run stops when more than this share of the rows read is unreadable. Judged from 1,000 rows on, or when all
    /// rows are read.
    pub max_bad_fraction: f64,
    /// `[engine.read]`: reading ahead.
    pub read: ReadWorkers,
    /// `[engine.prepare]`: decoding, cropping, tokenising.
    pub prepare: PrepareWorkers,
    /// `[engine.encode]`: the VAE and the text encoder.
    pub encode: EncodeWorkers,
    /// `[engine.train]`: on Ray, the workers that train; without it training stays on the machine of the verb.
    pub train: Option<TrainWorkers>,
    /// `[engine.ray]`: which cluster.
    pub ray: RayConfig,
}

/// Engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Threads of one process.
    #[default]
    Local,
    /// Tasks and actors of a Ray cluster. Every node must have this package, and reach source, models and output under
    /// the paths that the run file gives.
    Ray,
}

/// `[engine.ray]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RayConfig {
    /// Of the cluster, as `ray.init` takes it: `auto`, `host:port` or `ray://host:port`; `local` starts one on this
    /// machine. Without it the variable `RAY_ADDRESS` counts, then a cluster that runs on this machine, then `local`.
    pub address: Option<String>,
    /// Environment variables of all workers, such as those of NCCL and libfabric.
    pub env: BTreeMap<String, String>,
}

/// `[engine.read]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReadWorkers {
    /// Units read at the same time; 0 means two per encoder. More of them hide the latency of a slow source.
    pub workers: usize,
}

/// `[engine.prepare]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareWorkers {
    /// Worker threads, or a range such as `"2..8"` in which their number follows the encoders' input queue; 0 means one
    /// per core. On Ray: the most tasks at a time; 0 means as many as there is room for.
    pub workers: Workers,
    /// On Ray: CPUs of a task.
    pub cpus: f64,
}

impl Default for PrepareWorkers {
    fn default() -> Self {
        Self { workers: Workers::default(), cpus: 1.0 }
    }
}

/// `[engine.encode]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeWorkers {
    /// Encoders per device, each with its own copy of the models. On Ray: encoders in all, or a range such as `"1..40"`
    /// in which their number follows the backlog.
    pub workers: Workers,
    /// Threads libtorch uses for one operation on the CPU; 0 means one per core, on Ray one per CPU of an encoder. The
    /// bytes of encoded units may depend on it.
    pub threads: usize,
    /// On Ray: CPUs of an encoder.
    pub cpus: f64,
    /// On Ray: GPUs of an encoder. 1 if not given, or 0 with `engine.device = "cpu"`.
    pub gpus: Option<f64>,
    /// On Ray: the nodes that may have encoders, by their GPU, as in `ray.util.accelerators`: `A10G`, say.
    pub accelerator: Option<String>,
}

impl Default for EncodeWorkers {
    fn default() -> Self {
        let workers = Workers { min: 1, max: 1 };
        Self { workers, threads: 0, cpus: 1.0, gpus: None, accelerator: None }
    }
}

/// `[engine.train]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainWorkers {
    /// Workers of Ray Train, or a range such as `"24..32"` within which it starts again with as many as there is room for.
    pub workers: Workers,
    /// CPUs of each.
    pub cpus: f64,
    /// GPUs of each. 1 if not given, or 0 with `engine.device = "cpu"`.
    pub gpus: Option<f64>,
    /// The nodes that may have them, by their GPU, as in `ray.util.accelerators`: `A100`, say.
    pub accelerator: Option<String>,
}

impl Default for TrainWorkers {
    fn default() -> Self {
        Self { workers: Workers { min: 1, max: 1 }, cpus: 1.0, gpus: None, accelerator: None }
    }
}

/// A number of workers, or a range of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Workers {
    min: usize,
    max: usize,
}

impl Workers {
    /// The least and the most there may be.
    pub fn range(self) -> (usize, usize) {
        (cores(self.min), cores(self.max))
    }

    /// The most there may be, as it is written.
    pub fn most(self) -> usize {
        self.max
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is no number of workers; give one, or a range such as \"2..8\"");
        let (min, max) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        match (number(min)?, number(max)?) {
            (min, max) if (1..=max).contains(&min) => Ok(Self { min, max }),
            _ => Err(format!(
                "\"{text}\" is no range; it starts at 1 or more and ends where it starts or later"
            )),
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.min, self.max)
    }
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.min == self.max {
            true => serializer.serialize_u64(self.min as u64),
            false => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrRange;
        impl Visitor<'_> for NumberOrRange {
            type Value = Workers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of workers, or a range such as \"2..8\"")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Workers, E> {
                let n = usize::try_from(n).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))?;
                Ok(Workers { min: n, max: n })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Workers, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(NumberOrRange)
    }
}

/// Bytes as a number, or as text with a unit.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    let wrong = |_| de::Error::custom("must be bytes, such as \"4 GiB\" or 4294967296");
    ByteSize::deserialize(deserializer).map(Some).map_err(wrong)
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kind: Kind::Local,
            device: "auto".into(),
            memory: None,
            max_bad_fraction: 0.1,
            read: ReadWorkers::default(),
            prepare: PrepareWorkers::default(),
            encode: EncodeWorkers::default(),
            train: None,
            ray: RayConfig::default(),
        }
    }
}

impl EngineConfig {
    /// Bytes that the batches in flight may take.
    pub fn memory(&self) -> u64 {
        let part = || memory().map_or(0, |(_, total)| total) / 2 / tidemill_io::processes() as u64;
        self.memory.map_or_else(|| part().max(LEAST_MEMORY), |memory| memory.as_u64())
    }

    /// Units read at the same time.
    pub fn readers(&self, encoders: usize) -> usize {
        if self.read.workers == 0 { 2 * encoders } else { self.read.workers }
    }

    /// Checks the section on its own; an error is a key and what is wrong with its value.
    pub(crate) fn validate(&self) -> Result<(), (&'static str, String)> {
        if !(0.0..=1.0).contains(&self.max_bad_fraction) {
            return Err(("engine.max_bad_fraction", "must lie between 0 and 1".into()));
        }
        let Workers { min, max } = self.encode.workers;
        if min == 0 {
            return Err(("engine.encode.workers", "must be at least 1".into()));
        }
        if self.kind == Kind::Local && min != max {
            let message = "must be one number here; a range is for engine.kind = \"ray\"";
            return Err(("engine.encode.workers", message.into()));
        }
        let train = self.train.clone().unwrap_or_default();
        if train.workers.min == 0 {
            return Err(("engine.train.workers", "must be at least 1".into()));
        }
        if self.kind == Kind::Local && self.train.is_some() {
            let message = "is for engine.kind = \"ray\"; here say how many with `tidemill train --workers`";
            return Err(("engine.train", message.into()));
        }
        let amounts = [
            ("engine.train.cpus", train.cpus),
            ("engine.train.gpus", train.gpus.unwrap_or(0.0)),
            ("engine.prepare.cpus", self.prepare.cpus),
            ("engine.encode.cpus", self.encode.cpus),
            ("engine.encode.gpus", self.encode.gpus.unwrap_or(0.0)),
        ];
        if let Some((key, _)) = amounts.into_iter().find(|(_, amount)| !(0.0..1e6).contains(amount)) {
            return Err((key, "must be a number of at least 0".into()));
        }
        let device = self.device.as_str();
        let number = device.strip_prefix("cuda:").map(str::parse::<usize>);
        if !["auto", "cpu", "cuda"].contains(&device) && !matches!(number, Some(Ok(_))) {
            let message = format!(
                "\"{device}\" is no device; give \"auto\", \"cpu\", \"cuda\" or one GPU as \"cuda:0\""
            );
            return Err(("engine.device", message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(value: &str) -> Result<(usize, usize), String> {
        let config: Result<PrepareWorkers, _> = toml::from_str(&format!("workers = {value}"));
        config.map(|config| config.workers.range()).map_err(|error| error.message().to_string())
    }

    #[test]
    fn workers_are_a_number_or_a_range() {
        assert_eq!(workers("3"), Ok((3, 3)));
        assert_eq!(workers("0"), Ok((cores(0), cores(0))));
        assert_eq!(workers("'2..8'"), Ok((2, 8)));
        assert_eq!(workers("' 4 .. 4 '"), Ok((4, 4)));
        for (value, part) in [
            ("-1", "expected a number of workers"),
            ("1.5", "expected a number of workers"),
            ("'many'", "\"many\" is no number"),
            ("'2..'", "\"2..\" is no number"),
            ("'0..4'", "starts at 1 or more"),
            ("'8..2'", "ends where it starts or later"),
        ] {
            let message = workers(value).unwrap_err();
            assert!(message.contains(part), "{value}: {message}");
        }
    }

    #[test]
    fn memory_is_text_or_bytes() {
        let memory = |value: &str| -> Result<u64, String> {
            let config: Result<EngineConfig, _> = toml::from_str(&format!("memory = {value}"));
            config.map(|config| config.memory()).map_err(|error| error.message().to_string())
        };
        assert_eq!(memory("'4 GiB'"), Ok(4 << 30));
        assert_eq!(memory("'1.5MiB'"), Ok(3 << 19));
        assert_eq!(memory("1000"), Ok(1000));
        for value in ["'much'", "-1", "true"] {
            assert!(memory(value).unwrap_err().contains("must be bytes"), "{value}");
        }
        assert!(EngineConfig::default().memory() >= LEAST_MEMORY);
    }
}
