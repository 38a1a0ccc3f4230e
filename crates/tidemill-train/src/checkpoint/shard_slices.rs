//! Which elements of a rank's partitions have which numbers in a checkpoint.

use std::ops::Range;

use super::parameter::{Parameter, number_elements};
use crate::parallel::bucket_layout::BucketLayout;

/// Elements of a rank's partitions that have consecutive numbers in a checkpoint.
pub struct ShardSlice {
    /// The index of the bucket.
    pub bucket: usize,
    /// The index of the first element in the partition (or in the whole bucket).
    pub offset: usize,
    /// The numbers of the elements.
    pub elements: Range<usize>,
}

impl ShardSlice {
    /// Where the elements are in the partition (or in the whole bucket).
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements.len()
    }
}

/// The slices of one partition of every bucket, with the numbers that `parameters` imply.
/// Parameters that are not in this list are left out.
pub fn partition_slices(
    layout: &BucketLayout,
    partition: usize,
    parameters: &[Parameter],
) -> Vec<ShardSlice> {
    let (numbers, _) = number_elements(parameters);
    let of_bucket = |bucket| layout.slices(bucket, partition).map(move |slice| (bucket, slice));
    let slices = (0..layout.buckets().len()).flat_map(of_bucket);
    let numbered = slices.filter_map(|(bucket, slice)| {
        let own = numbers.get(layout.slots()[slice.slot].name.as_str())?;
        let elements = own.start + slice.elements.start..own.start + slice.elements.end;
        Some(ShardSlice { bucket, offset: slice.offset, elements })
    });
    numbered.collect()
}

/// The slices of several partitions, with offsets in whole buckets.
pub fn bucket_slices(
    layout: &BucketLayout,
    partitions: Range<usize>,
    parameters: &[Parameter],
) -> Vec<ShardSlice> {
    let of_partition = |partition| {
        let to_bucket = move |slice: ShardSlice| {
            let offset = slice.offset + layout.partition_range(slice.bucket, partition).start;
            ShardSlice { offset, ..slice }
        };
        partition_slices(layout, partition, parameters).into_iter().map(to_bucket)
    };
    let mut all: Vec<ShardSlice> = partitions.flat_map(of_partition).collect();
    all.sort_by_key(|slice| (slice.bucket, slice.offset));
    all
}

/// Merges adjacent ranges.
pub fn merge_adjacent(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => merged.push(range),
        }
    }
    merged
}

/// The smallest range that contains all of these; `None` if there are none.
pub fn enclosing_range(ranges: impl Iterator<Item = Range<usize>>) -> Option<Range<usize>> {
    ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
}

/// The intersection of two ranges; `None` if it is empty.
pub fn intersect(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}
