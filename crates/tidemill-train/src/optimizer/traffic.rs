//! The bytes that each rank sends in a step.

use tch::Kind;
use tidemill_plan::Traffic;

use super::adamw::Optimizer;
use crate::parallel::bucket_layout::Bucket;
use crate::parallel::working_weights::working_kind;
use crate::parallel::world::World;

impl Optimizer {
    /// The bytes that each rank of `world` sends in a step of so many micro-batches, if collectives send no more than
    /// they must.
    pub fn traffic(&self, world: &World, micro_batches: usize) -> Traffic {
        let [reduction_kind, network_kind] = self.kinds();
        let (ranks, partitions) = (world.size() as u64, self.layout().partition_count() as u64);
        let bytes =
            |kind: Kind, bucket: &Bucket| (kind.elt_size_in_bytes() * bucket.trainable_length()) as u64;
        let layout = self.layout();
        let gradients: u64 = layout.buckets().iter().map(|bucket| bytes(reduction_kind, bucket)).sum();
        // With sharded weights each micro-batch gathers them, frozen ones too, and is reduced.
        let reductions = if layout.has_units() { micro_batches } else { 1 };
        let weights = layout.unit_sizes(|bucket| match bucket.treatment.unit {
            Some(_) => (working_kind(bucket, network_kind).elt_size_in_bytes() * bucket.length) as u64,
            None => bytes(working_kind(bucket, network_kind), bucket),
        });
        Traffic::new(ranks, partitions, gradients * reductions as u64, weights.gathered(micro_batches as u64))
    }
}
