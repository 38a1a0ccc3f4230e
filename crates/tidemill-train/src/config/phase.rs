//! `[[train.phase]]`: a phase of a run, and the settings it overrides.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_store::stream::MixAmount;

use super::lr_schedule::LrSchedule;

/// `[[train.phase]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseConfig {
    /// Resolution in pixels. The dataset must have been prepared for it.
    pub resolution: u32,
    /// Optimizer steps.
    pub steps: u64,
    /// Samples per optimizer step of this phase. Unset: `train.global_batch`.
    #[serde(default)]
    pub global_batch: Option<usize>,
    /// Samples per forward and backward pass of this phase. Unset: `train.micro_batch`.
    #[serde(default)]
    pub micro_batch: Option<usize>,
    /// Learning rate of this phase. Unset: `train.learning_rate`.
    #[serde(default)]
    pub learning_rate: Option<f64>,
    /// Steps over which the learning rate rises from 0 in this phase. Unset: `train.warmup_steps`,
    /// which count from the start of the run.
    #[serde(default)]
    pub warmup_steps: Option<u64>,
    /// How the learning rate changes after warm-up. Unset: `train.schedule`.
    #[serde(default)]
    pub schedule: Option<LrSchedule>,
    /// How much of which datasets of `[[train.mix]]` this phase uses, by name, as in `{ mine = {
    /// repeat = 2.0 } }`. Unset: the amounts in `[[train.mix]]`.
    #[serde(default)]
    pub mix: Option<BTreeMap<String, MixAmount>>,
}

impl PhaseConfig {
    /// A phase of no steps at `resolution` that overrides nothing.
    pub fn new(resolution: u32) -> Self {
        Self {
            resolution,
            steps: 0,
            global_batch: None,
            micro_batch: None,
            learning_rate: None,
            warmup_steps: None,
            schedule: None,
            mix: None,
        }
    }
}
