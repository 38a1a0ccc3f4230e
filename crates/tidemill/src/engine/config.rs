//! `[engine]`: who does the work and with how much of the machine.

use serde::{Deserialize, Serialize};

/// `[engine]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// What runs the stages.
    pub kind: Kind,
    /// Where the models run: `auto` (every GPU, else the CPU), `cpu`, `cuda` (every GPU) or `cuda:1`.
    pub device: String,
    /// The run stops when more than this share of the rows read is unreadable.
    pub max_bad_fraction: f64,
    /// `[engine.prepare]`: decoding, cropping, tokenising.
    pub prepare: PrepareWorkers,
    /// `[engine.encode]`: the VAE and the text encoder.
    pub encode: EncodeWorkers,
}

/// Engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Threads of one process.
    #[default]
    Local,
}

/// `[engine.prepare]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareWorkers {
    /// Worker threads; 0 means one per core.
    pub workers: usize,
}

/// `[engine.encode]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeWorkers {
    /// Threads libtorch uses for one operation on the CPU; 0 means one per core. The bytes of encoded units may
    /// depend on it.
    pub threads: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kind: Kind::Local,
            device: "auto".into(),
            max_bad_fraction: 0.1,
            prepare: PrepareWorkers::default(),
            encode: EncodeWorkers::default(),
        }
    }
}

impl EngineConfig {
    /// Checks the section on its own; an error is a key and what is wrong with its value.
    pub(crate) fn validate(&self) -> Result<(), (&'static str, String)> {
        if !(0.0..=1.0).contains(&self.max_bad_fraction) {
            return Err(("engine.max_bad_fraction", "must lie between 0 and 1".into()));
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
