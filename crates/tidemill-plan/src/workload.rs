//! What is trained.

use std::collections::BTreeMap;

use crate::memory::{BackwardMoment, MemoryLayout, Sharding};
use crate::shard_units::UnitSizes;
use crate::storage::{RowFormat, TextFormat};

/// A run, as a plan sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// The network's bytes on one rank; a plan sets the number of ranks, and of those that share the state.
    pub layout: MemoryLayout,
    /// Which ranks share the state.
    pub sharding: Sharding,
    /// The network's parameters by shard unit, if their weights are sharded.
    pub shard_units: Option<UnitSizes>,
    /// Whether there are validations or previews, for which sharded weights are gathered.
    pub has_evaluations: bool,
    /// Bytes of a dataset's rows.
    pub row_format: RowFormat,
    /// How the dataset has its captions.
    pub embeddings: TextFormat,
    /// What one image costs the network at each resolution.
    pub image_costs: BTreeMap<u32, ImageCost>,
}

/// A phase of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Pixels.
    pub resolution: u32,
    /// Images in all steps together.
    pub samples: u64,
    /// Images of a step.
    pub global_batch: u64,
    /// Images of a forward and backward pass of a rank.
    pub micro_batch: u64,
}

/// What one image costs the network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageCost {
    /// Floating-point operations, forward and backward.
    pub flops: f64,
    /// Moments of a backward pass; `None` if activations are not counted for this network.
    pub activations: Option<Vec<BackwardMoment>>,
}
