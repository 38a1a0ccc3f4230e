//! Resharding: loads this rank's partitions from the state shards that any number of ranks wrote.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::SafeTensors;
use tch::{Tensor, no_grad};
use tidemill_torch::guard;

use super::parameter::{Parameter, number_elements};
use super::shard_format::{BufferValues, is_moment, read_buffer};
use super::shard_slices::{ShardSlice, intersect, partition_slices};
use crate::optimizer::Optimizer;
use crate::parallel::bucket_layout::BucketLayout;
use crate::parallel::element_order::ElementOrder;

/// Fills an optimizer's partitions from state shards, one shard after the other.
pub struct Resharder<'a> {
    layout: &'a BucketLayout,
    buffers: Vec<(&'static str, &'a [Tensor])>,
    /// Slices of parameters that the checkpoint has in the same element order.
    slices: Vec<ShardSlice>,
    /// Parameters that the checkpoint has in the other element order.
    reordered: Vec<ReorderedParameter>,
    /// The number of elements of each buffer that are not loaded yet.
    missing: usize,
}

/// A parameter that the checkpoint has in the other element order.
struct ReorderedParameter {
    /// The parameter in the checkpoint.
    stored: Parameter,
    /// The numbers of its elements in the checkpoint.
    numbers: Range<usize>,
    /// This rank's slices of it, with elements counted from 0 in this rank's order.
    own: Vec<ShardSlice>,
}

/// Where an element of a reordered parameter goes.
struct ElementMove {
    bucket: usize,
    /// The index of the element in the partition.
    offset: usize,
    /// The index of its value in the range that was read.
    value: usize,
}

impl ReorderedParameter {
    /// Where the elements of a range of numbers go. Elements that this rank does not have are left
    /// out.
    fn map_elements(&self, range: &Range<usize>) -> impl Iterator<Item = ElementMove> {
        let numbers = intersect(range, &self.numbers).unwrap_or_default();
        let start = range.start;
        numbers.filter_map(move |number| {
            let stored = number - self.numbers.start;
            let element = self.stored.order.to_other_order(&self.stored.shape, stored);
            let slice = self.own.iter().find(|slice| slice.elements.contains(&element))?;
            let offset = slice.offset + element - slice.elements.start;
            Some(ElementMove { bucket: slice.bucket, offset, value: number - start })
        })
    }
}

impl<'a> Resharder<'a> {
    /// Prepares to load all state of `optimizer` from a checkpoint with these parameters.
    ///
    /// # Errors
    /// Names the first parameter that the checkpoint lacks, has in another shape, or has in
    /// addition.
    pub fn new(optimizer: &'a Optimizer, parameters: &[Parameter]) -> Result<Self, String> {
        let layout = optimizer.layout();
        check_parameters(layout, parameters)?;
        let slices = partition_slices(layout, optimizer.partition(), parameters);
        let missing = slices.iter().map(|slice| slice.elements.len()).sum();
        let (numbers, _) = number_elements(parameters);
        let own_orders: HashMap<&str, ElementOrder> =
            layout.slots().iter().map(|slot| (slot.name.as_str(), slot.order)).collect();
        let mut resharder =
            Self { layout, buffers: optimizer.buffers(), slices, reordered: Vec::new(), missing };
        for stored in
            parameters.iter().filter(|stored| own_orders.get(stored.name.as_str()) != Some(&stored.order))
        {
            resharder.reorder(stored, numbers[stored.name.as_str()].clone());
        }
        Ok(resharder)
    }

    /// Loads a parameter from the other element order.
    fn reorder(&mut self, stored: &Parameter, numbers: Range<usize>) {
        let is_own = |slice: &mut ShardSlice| intersect(&slice.elements, &numbers).is_some();
        let count_from_zero = |slice: ShardSlice| {
            let elements = slice.elements.start - numbers.start..slice.elements.end - numbers.start;
            ShardSlice { elements, ..slice }
        };
        let own = self.slices.extract_if(.., is_own).map(count_from_zero).collect();
        self.reordered.push(ReorderedParameter { stored: stored.clone(), numbers: numbers.clone(), own });
    }

    /// Whether a shard with these ranges has any state of this rank.
    pub fn needs(&self, ranges: &[Range<usize>]) -> bool {
        let has = |elements: &Range<usize>| ranges.iter().any(|range| intersect(range, elements).is_some());
        self.slices.iter().any(|slice| has(&slice.elements))
            || self.reordered.iter().any(|parameter| !parameter.own.is_empty() && has(&parameter.numbers))
    }

    /// Loads this rank's state from a shard with these ranges.
    ///
    /// # Errors
    /// Describes what the shard lacks.
    pub fn load_shard(&mut self, ranges: &[Range<usize>], shard: &SafeTensors) -> Result<(), String> {
        for (name, partitions) in &self.buffers {
            for (elements, values) in read_buffer(ranges, shard, name)? {
                // Frozen parameters have no moments to fill.
                let is_filled =
                    |bucket: usize| !(is_moment(name) && self.layout.buckets()[bucket].treatment.is_frozen);
                for parameter in &self.reordered {
                    let moves = parameter.map_elements(&elements).filter(|to| is_filled(to.bucket));
                    move_elements(partitions, moves, values).map_err(|e| e.to_string())?;
                }
                for slice in self.slices.iter().filter(|slice| is_filled(slice.bucket)) {
                    let Some(both) = intersect(&elements, &slice.elements) else { continue };
                    let range = both.start - elements.start..both.end - elements.start;
                    let offset = (slice.offset + both.start - slice.elements.start) as i64;
                    let copy = || {
                        let target = partitions[slice.bucket].narrow(0, offset, both.len() as i64);
                        no_grad(|| target.shallow_clone().copy_(&values.to_tensor(range)));
                    };
                    guard(copy).map_err(|e| e.to_string())?;
                }
            }
        }
        self.missing = self.missing.saturating_sub(self.count_own(ranges));
        Ok(())
    }

    /// The number of this rank's elements in these ranges.
    fn count_own(&self, ranges: &[Range<usize>]) -> usize {
        let in_order = |range| {
            self.slices.iter().filter_map(move |slice| Some(intersect(range, &slice.elements)?.len()))
        };
        let reordered =
            |range| self.reordered.iter().map(move |parameter| parameter.map_elements(range).count());
        ranges.iter().flat_map(|range| in_order(range).chain(reordered(range))).sum()
    }

    /// Checks that all state is loaded, after the last shard.
    ///
    /// # Errors
    /// If values are missing.
    pub fn check_complete(self) -> Result<(), String> {
        match self.missing {
            0 => Ok(()),
            missing => Err(format!("its shards lack {missing} values of its parameters")),
        }
    }
}

/// Checks that a checkpoint has the parameters of this network.
fn check_parameters(layout: &BucketLayout, parameters: &[Parameter]) -> Result<(), String> {
    let stored: HashMap<&str, &Parameter> = parameters.iter().map(|p| (p.name.as_str(), p)).collect();
    let mismatch = layout.slots().iter().find_map(|slot| match stored.get(slot.name.as_str()) {
        None => Some(format!("it lacks {}", slot.name)),
        Some(parameter) if parameter.shape != slot.shape => {
            Some(format!("{} is {:?}, expected {:?}", slot.name, parameter.shape, slot.shape))
        }
        Some(_) => None,
    });
    let surplus = || {
        let is_unknown = |p: &&Parameter| layout.slots().iter().all(|slot| slot.name != p.name);
        let unknown = parameters.iter().find(is_unknown)?;
        Some(format!("{} is not a parameter of this model", unknown.name))
    };
    match mismatch.or_else(surplus) {
        Some(problem) => {
            Err(format!("{problem}; resume with the checkpoint's model, or give the run another output"))
        }
        None => Ok(()),
    }
}

/// Copies values to where their elements go.
fn move_elements(
    partitions: &[Tensor],
    moves: impl Iterator<Item = ElementMove>,
    values: BufferValues,
) -> Result<(), tidemill_torch::Error> {
    let mut by_bucket: HashMap<usize, (Vec<i64>, Vec<u8>)> = HashMap::new();
    let size = values.kind.elt_size_in_bytes();
    for ElementMove { bucket, offset, value } in moves {
        let (offsets, bytes) = by_bucket.entry(bucket).or_default();
        offsets.push(offset as i64);
        bytes.extend_from_slice(&values.bytes[size * value..size * (value + 1)]);
    }
    guard(|| {
        for (bucket, (offsets, bytes)) in &by_bucket {
            let mut partition = partitions[*bucket].shallow_clone();
            let moved = BufferValues { bytes, kind: values.kind }.to_tensor(0..offsets.len());
            let offsets = Tensor::from_slice(offsets).to_device(partition.device());
            let moved = moved.to_device(partition.device()).to_kind(partition.kind());
            no_grad(|| drop(partition.index_copy_(0, &offsets, &moved)));
        }
    })
}
