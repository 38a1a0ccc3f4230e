//! The precision of arithmetic and stored state, and how state is sharded over the ranks.

use serde::{Deserialize, Serialize};

/// A floating-point format for arithmetic, communication or stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bfloat16: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// Single precision.
    F32,
}

/// `train.sharding`: which gradients and optimizer state each rank has. Weights are whole on all
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// Each rank has its partition, as in FSDP's `SHARD_GRAD_OP`.
    ShardGradOp,
    /// The ranks of each node have all of them together, and nodes have the same, as in FSDP's
    /// `_HYBRID_SHARD_ZERO2`. Weights are gathered within a node only.
    HybridShard,
    /// Each rank has all of them, as in DDP.
    None,
}
