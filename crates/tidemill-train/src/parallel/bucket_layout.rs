//! The layout of parameters in buckets: one after the other, in the order in which the network uses
//! them. One collective communicates one bucket. Each bucket is split into equally long partitions,
//! one per rank with sharding, so that a rank's shard of the state is one partition of every
//! bucket. Nothing in this file stores or moves values.

use std::ops::Range;

use tidemill_plan::shard_units::UnitSizes;

use super::element_order::ElementOrder;

/// Each parameter starts at a multiple of this many elements, for vectorised kernels: 64 bytes of
/// bf16, 128 bytes of f32. The padding between parameters is zero and stays zero.
const ALIGNMENT: usize = 32;

/// The location of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSlot {
    /// The parameter's name in the network.
    pub name: String,
    /// The parameter's shape.
    pub shape: Vec<i64>,
    /// The order of its elements.
    pub order: ElementOrder,
    /// The index of its bucket.
    pub bucket: usize,
    /// The index of its first element in the bucket.
    pub offset: usize,
}

/// How a parameter is treated. All parameters of a bucket are treated the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterTreatment {
    /// The parameter is not trained.
    pub is_frozen: bool,
    /// The working weights are f32 even if those of the network are bf16.
    pub is_f32: bool,
    /// The shard unit whose parameter it is, if the weights of units are sharded.
    pub unit: Option<usize>,
}

/// Parameters that are communicated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The indices of its parameters, in order.
    pub slots: Vec<usize>,
    /// The number of its elements with padding: a multiple of the number of partitions.
    pub length: usize,
    /// How its parameters are treated.
    pub treatment: ParameterTreatment,
}

/// The layout of all parameters of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    slots: Vec<ParameterSlot>,
    buckets: Vec<Bucket>,
    partition_count: usize,
}

/// The elements of one parameter that are in one partition of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSlice {
    /// The index of the parameter.
    pub slot: usize,
    /// The elements, counted in the parameter's [`ElementOrder`].
    pub elements: Range<usize>,
    /// The index of the first of them in the partition.
    pub offset: usize,
}

impl ParameterSlot {
    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().map(|n| usize::try_from(*n).unwrap_or(0)).product()
    }

    /// The range of its elements in the bucket.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.numel()
    }
}

impl Bucket {
    /// The number of its elements that have gradients: all or none.
    pub fn trainable_length(&self) -> usize {
        if self.treatment.is_frozen { 0 } else { self.length }
    }
}

impl BucketLayout {
    /// Lays parameters out in the given order. A bucket has as many parameters of one treatment as
    /// fit into `bucket_elements`, and at least one. `treatment` gives the treatment of a parameter
    /// by its name.
    pub fn new(
        parameters: impl IntoIterator<Item = (String, Vec<i64>)>,
        partition_count: usize,
        bucket_elements: usize,
        treatment: impl Fn(&str) -> ParameterTreatment,
    ) -> Self {
        let (mut slots, mut buckets): (Vec<ParameterSlot>, Vec<Bucket>) = (Vec::new(), Vec::new());
        for (name, shape) in parameters {
            let treatment = treatment(&name);
            let mut slot = ParameterSlot { name, shape, order: ElementOrder::RowMajor, bucket: 0, offset: 0 };
            let length = slot.numel().next_multiple_of(ALIGNMENT);
            // The bucket of this treatment that is being filled.
            let open = buckets.iter().rposition(|bucket| bucket.treatment == treatment);
            slot.bucket = match open.filter(|open| buckets[*open].length + length <= bucket_elements) {
                Some(open) => open,
                None => {
                    buckets.push(Bucket { slots: Vec::new(), length: 0, treatment });
                    buckets.len() - 1
                }
            };
            let bucket = &mut buckets[slot.bucket];
            slot.offset = bucket.length;
            bucket.length += length;
            bucket.slots.push(slots.len());
            slots.push(slot);
        }
        for bucket in &mut buckets {
            bucket.length = bucket.length.next_multiple_of(partition_count * ALIGNMENT);
        }
        Self { slots, buckets, partition_count }
    }

    /// Sets the element order of each parameter, by its index.
    pub fn with_element_orders(mut self, order: impl Fn(usize) -> ElementOrder) -> Self {
        self.slots.iter_mut().enumerate().for_each(|(i, slot)| slot.order = order(i));
        self
    }

    /// The parameters, in order.
    pub fn slots(&self) -> &[ParameterSlot] {
        &self.slots
    }

    /// The buckets, in order.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Whether the weights of units are sharded.
    pub fn has_units(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.treatment.unit.is_some())
    }

    /// The buckets of each shard unit, in the order of their use.
    pub fn units(&self) -> Vec<Vec<usize>> {
        let mut units = Vec::new();
        for (index, bucket) in self.buckets.iter().enumerate() {
            if let Some(unit) = bucket.treatment.unit {
                units.resize(units.len().max(unit + 1), Vec::new());
                units[unit].push(index);
            }
        }
        units
    }

    /// The sizes of shard units, and of all other buckets together, if a bucket has this size.
    pub fn unit_sizes(&self, size: impl Fn(&Bucket) -> u64) -> UnitSizes {
        let sum = |unit: &Vec<usize>| unit.iter().map(|bucket| size(&self.buckets[*bucket])).sum();
        let others = self.buckets.iter().filter(|bucket| bucket.treatment.unit.is_none());
        UnitSizes { always: others.map(&size).sum(), units: self.units().iter().map(sum).collect() }
    }

    /// The number of partitions of each bucket: the number of ranks with sharding, else 1.
    pub fn partition_count(&self) -> usize {
        self.partition_count
    }

    /// The elements of a bucket that are in a partition.
    pub fn partition_range(&self, bucket: usize, partition: usize) -> Range<usize> {
        let length = self.buckets[bucket].length / self.partition_count;
        partition * length..(partition + 1) * length
    }

    /// The slices of parameters in one partition of a bucket.
    pub fn slices(&self, bucket: usize, partition: usize) -> impl Iterator<Item = ParameterSlice> {
        let range = self.partition_range(bucket, partition);
        self.buckets[bucket].slots.iter().filter_map(move |slot| {
            let slot = *slot;
            let own = self.slots[slot].range();
            let (start, end) = (own.start.max(range.start), own.end.min(range.end));
            let elements = start.checked_sub(own.start)?..end.checked_sub(own.start)?;
            (start < end).then(|| ParameterSlice { slot, elements, offset: start - range.start })
        })
    }

    /// The padding between the parameters of a bucket, and after the last one.
    pub fn padding(&self, bucket: usize) -> impl Iterator<Item = Range<usize>> {
        let Bucket { slots, length, .. } = &self.buckets[bucket];
        let ends = slots.iter().map(|slot| self.slots[*slot].range().end);
        let starts = slots.iter().skip(1).map(|slot| self.slots[*slot].offset).chain([*length]);
        ends.zip(starts).map(|(end, start)| end..start).filter(|gap| !gap.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn named(sizes: &[i64]) -> impl Iterator<Item = (String, Vec<i64>)> {
        sizes.iter().zip(0..).map(|(size, i)| (format!("p{i}"), vec![*size]))
    }

    fn layout(sizes: &[i64], partitions: usize, bucket_elements: usize) -> BucketLayout {
        BucketLayout::new(named(sizes), partitions, bucket_elements, |_| ParameterTreatment::default())
    }

    #[test]
    fn buckets_group_parameters_by_treatment() {
        let treatment = |name: &str| ParameterTreatment {
            is_frozen: name == "p1" || name == "p2",
            is_f32: name == "p3",
            unit: None,
        };
        let layout = BucketLayout::new(named(&[8; 7]), 1, 64, treatment);
        let buckets: Vec<_> = layout.buckets().iter().map(|b| (&b.slots[..], b.treatment)).collect();
        let (frozen, f32) = (treatment("p1"), treatment("p3"));
        let plain = ParameterTreatment::default();
        let expected: [(&[usize], _); 4] =
            [(&[0, 4], plain), (&[1, 2], frozen), (&[3], f32), (&[5, 6], plain)];
        assert_eq!(buckets, expected);
        let locations: Vec<_> = layout.slots().iter().map(|slot| (slot.bucket, slot.offset)).collect();
        assert_eq!(locations, [(0, 0), (1, 0), (1, 32), (2, 0), (0, 32), (3, 0), (3, 32)]);
    }

    #[test]
    fn buckets_do_not_mix_units() {
        let unit = |name: &str| match name {
            "p1" | "p2" => Some(0),
            "p3" | "p4" | "p5" => Some(1),
            _ => None,
        };
        let treatment = |name: &str| ParameterTreatment { unit: unit(name), ..ParameterTreatment::default() };
        let layout = BucketLayout::new(named(&[32, 32, 32, 64, 64, 32, 32]), 1, 128, treatment);
        let slots: Vec<_> = layout.buckets().iter().map(|bucket| bucket.slots.clone()).collect();
        assert_eq!(slots, [vec![0, 6], vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(layout.units(), [vec![1], vec![2, 3]]);
        let sizes = layout.unit_sizes(|bucket| bucket.length as u64);
        assert_eq!(sizes, UnitSizes { always: 64, units: vec![64, 160] });
    }

    #[test]
    fn parameters_fill_buckets_in_order() {
        let layout = layout(&[40, 32, 1, 500, 64], 3, 128);
        let slots: Vec<_> = layout.slots().iter().map(|slot| (slot.bucket, slot.offset)).collect();
        assert_eq!(slots, [(0, 0), (0, 64), (0, 96), (1, 0), (2, 0)]);
        let lengths: Vec<_> = layout.buckets().iter().map(|bucket| bucket.length).collect();
        assert_eq!(lengths, [192, 576, 96], "multiples of three partitions of 32");
        assert_eq!(layout.padding(0).collect::<Vec<_>>(), [40..64, 97..192]);
        let slices: Vec<_> = layout.slices(0, 1).collect();
        assert_eq!(
            slices,
            [
                ParameterSlice { slot: 1, elements: 0..32, offset: 0 },
                ParameterSlice { slot: 2, elements: 0..1, offset: 32 }
            ]
        );
        assert_eq!(layout.slices(0, 2).count(), 0, "a partition of padding only");
    }

    proptest! {
        #[test]
        fn partitions_of_all_ranks_cover_each_element_once(
            sizes in vec(1i64..300, 1..12), partitions in 1usize..8, bucket_elements in 0usize..600,
        ) {
            let layout = layout(&sizes, partitions, bucket_elements);
            let mut seen: Vec<Vec<u32>> = sizes.iter().map(|size| vec![0; *size as usize]).collect();
            let buckets = 0..layout.buckets().len();
            for (bucket, partition) in buckets.clone().flat_map(|b| (0..partitions).map(move |p| (b, p))) {
                for ParameterSlice { slot, elements, offset } in layout.slices(bucket, partition) {
                    let in_bucket = layout.slots()[slot].offset + elements.start;
                    prop_assert_eq!(layout.partition_range(bucket, partition).start + offset, in_bucket);
                    seen[slot][elements].iter_mut().for_each(|count| *count += 1);
                }
            }
            prop_assert!(seen.iter().flatten().all(|count| *count == 1));
            let used: usize = sizes.iter().map(|size| *size as usize).sum();
            let gaps: usize = buckets.clone().flat_map(|b| layout.padding(b)).map(|gap| gap.len()).sum();
            let length: usize = layout.buckets().iter().map(|bucket| bucket.length).sum();
            prop_assert_eq!(used + gaps, length);
            // The grouping into buckets does not depend on the number of ranks.
            let alone: Vec<_> = BucketLayout::new(named(&sizes), 1, bucket_elements, |_| ParameterTreatment::default()).buckets.into_iter().map(|b| b.slots).collect();
            prop_assert_eq!(alone, layout.buckets.into_iter().map(|b| b.slots).collect::<Vec<_>>());
        }
    }
}
