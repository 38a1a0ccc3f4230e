//! The bytes that each rank sends in a step.

use tch::Kind;

use super::adamw::Optimizer;
use crate::parallel::bucket_layout::Bucket;
use crate::parallel::working_weights::working_kind;
use crate::parallel::world::World;

/// Bytes that each rank sends in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// To reduce gradients.
    pub gradients: u64,
    /// To gather weights.
    pub weights: u64,
}

impl Traffic {
    /// The traffic of `gradients` and `weights` bytes.
    ///
    /// In a ring of N ranks a reduce-scatter or an all-gather of S bytes sends (N - 1) / N x S from
    /// each rank, an all-reduce twice as much (Patarasu and Yuan, 2009), which is the least for any
    /// algorithm. Gloo implements reduce-scatter as an all-reduce and keeps a part of its result,
    /// so it sends twice as much.
    pub(super) fn new(ranks: u64, is_sharded: bool, gradients: u64, weights: u64) -> Self {
        let once = |bytes: u64| bytes * (ranks - 1) / ranks;
        match is_sharded {
            true => Self { gradients: once(gradients), weights: once(weights) },
            false => Self { gradients: 2 * once(gradients), weights: 0 },
        }
    }
}

impl Optimizer {
    /// The bytes that each rank of `world` sends in a step, if collectives send no more than they
    /// must.
    pub fn traffic(&self, world: &World) -> Traffic {
        let [reduction_kind, network_kind] = self.kinds();
        let (ranks, is_sharded) = (world.size() as u64, self.layout().partition_count() > 1);
        let bytes =
            |kind: Kind, bucket: &Bucket| (kind.elt_size_in_bytes() * bucket.trainable_length()) as u64;
        let buckets = || self.layout().buckets().iter();
        let gradients = buckets().map(|bucket| bytes(reduction_kind, bucket)).sum();
        let weights = buckets().map(|bucket| bytes(working_kind(bucket, network_kind), bucket)).sum();
        Traffic::new(ranks, is_sharded, gradients, weights)
    }
}
