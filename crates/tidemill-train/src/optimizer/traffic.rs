//! The bytes that each rank sends in a step.

use tch::Kind;
use tidemill_plan::Traffic;

use super::adamw::Optimizer;
use crate::parallel::bucket_layout::Bucket;
use crate::parallel::working_weights::working_kind;
use crate::parallel::world::World;

impl Optimizer {
    /// The bytes that each rank of `world` sends in a step, if collectives send no more than they
    /// must.
    pub fn traffic(&self, world: &World) -> Traffic {
        let [reduction_kind, network_kind] = self.kinds();
        let (ranks, partitions) = (world.size() as u64, self.layout().partition_count() as u64);
        let bytes =
            |kind: Kind, bucket: &Bucket| (kind.elt_size_in_bytes() * bucket.trainable_length()) as u64;
        let buckets = || self.layout().buckets().iter();
        let gradients = buckets().map(|bucket| bytes(reduction_kind, bucket)).sum();
        let weights = buckets().map(|bucket| bytes(working_kind(bucket, network_kind), bucket)).sum();
        Traffic::new(ranks, partitions, gradients, weights)
    }
}
