//! How the state of a network is spread over the ranks, and which parameters are treated specially.

use std::collections::BTreeSet;

use tch::Kind;
use tidemill_models::ShardUnits;

use crate::parallel::gradient_reduction::GradientReduction;

/// How the state of a network is spread over the ranks, and which parameters are treated specially.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardingPlan {
    /// The number of ranks that share gradients and optimizer state: all (FSDP's `SHARD_GRAD_OP`), those of
    /// a node, or 1, if each rank has all of them (DDP).
    pub partition_count: usize,
    /// The most elements in a bucket, unless one parameter alone has more.
    pub bucket_elements: usize,
    /// How gradients are reduced.
    pub reduction: GradientReduction,
    /// The dtype of AdamW's moments: f32 or bf16.
    pub moment_kind: Kind,
    /// Names of frozen parameters.
    pub frozen: BTreeSet<String>,
    /// Names of parameters whose working weights are f32.
    pub f32_params: BTreeSet<String>,
    /// The shard units, if weights are sharded, too (FSDP's `FULL_SHARD`).
    pub units: ShardUnits,
}
