//! The phases of a run, and what is different in each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_store::stream::{MixAmount, Phase};

use super::{LrSchedule, TrainConfig, refuse};
use crate::Error;

/// `[[train.phase]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseConfig {
    /// Resolution in pixels; the dataset must have been prepared for it.
    pub resolution: u32,
    /// Optimizer steps.
    pub steps: u64,
    /// Samples per optimizer step of this phase; unset: those of `[train]`.
    #[serde(default)]
    pub global_batch: Option<usize>,
    /// Samples per forward and backward pass of this phase; unset: those of `[train]`.
    #[serde(default)]
    pub micro_batch: Option<usize>,
    /// Learning rate of this phase; unset: that of `[train]`.
    #[serde(default)]
    pub learning_rate: Option<f64>,
    /// Steps over which it rises from 0 in this phase; unset: that of `[train]`, at the beginning of the run.
    #[serde(default)]
    pub warmup_steps: Option<u64>,
    /// What it does after that; unset: as `[train]` says.
    #[serde(default)]
    pub schedule: Option<LrSchedule>,
    /// How much of which of the datasets in `[[train.mix]]`, by name, as in `{ mine = { repeat = 2.0 } }`; unset: as they say.
    #[serde(default)]
    pub mix: Option<BTreeMap<String, MixAmount>>,
}

impl PhaseConfig {
    /// No steps at this resolution; all else as `[train]` says.
    pub fn at(resolution: u32) -> Self {
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

impl TrainConfig {
    /// Steps of all phases together.
    pub fn total_steps(&self) -> u64 {
        self.phase.iter().map(|p| p.steps).sum()
    }

    /// The phase that `step` (counted from 0 over all phases) belongs to, and its first step.
    pub fn phase_at(&self, step: u64) -> Option<(usize, u64)> {
        let mut first = 0;
        for (index, phase) in self.phase.iter().enumerate() {
            if step < first + phase.steps {
                return Some((index, first));
            }
            first += phase.steps;
        }
        None
    }

    /// Samples per optimizer step of a phase.
    pub fn global_batch_of(&self, phase: usize) -> usize {
        self.phase[phase].global_batch.unwrap_or(self.global_batch)
    }

    /// Samples per forward and backward pass of a phase.
    pub fn micro_batch_of(&self, phase: usize) -> usize {
        self.phase[phase].micro_batch.unwrap_or(self.micro_batch)
    }

    /// What the batches of a phase are made of.
    pub fn stream_phase(&self, index: usize) -> Phase {
        let PhaseConfig { resolution, mix, .. } = &self.phase[index];
        let mut phase = Phase::single_dataset(*resolution, self.global_batch_of(index) as u64);
        if let Some(mix) = mix {
            phase.mix.clone_from(mix);
        } else if !self.mix.is_empty() {
            let amounts = self.mix.iter().filter_map(|entry| Some((entry.name.clone(), entry.amount()?)));
            phase.mix = amounts.collect();
        }
        phase
    }

    /// Refuses batches that cannot be.
    pub(super) fn validate_batches(&self) -> Result<(), Error> {
        for (index, phase) in self.phase.iter().enumerate() {
            let (global, micro) = (self.global_batch_of(index), self.micro_batch_of(index));
            let own = phase.global_batch.or(phase.micro_batch).is_some();
            let section = if own { format!("train.phase.{index}") } else { "train".into() };
            let key = format!("{section}.micro_batch");
            if micro == 0 || global == 0 {
                return refuse(key, "micro_batch and global_batch must be at least 1");
            }
            if micro > global {
                return refuse(key, format!("micro_batch = {micro} is larger than global_batch = {global}"));
            }
        }
        Ok(())
    }
}
