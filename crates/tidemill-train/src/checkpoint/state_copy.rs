//! A copy of the state that one rank writes to a checkpoint, in host memory, so that training
//! continues while it is written.

use std::cmp::Reverse;
use std::ops::Range;

use bytes::Bytes;
use tch::{Kind, Tensor};
use tidemill_torch::{HostCopy, guard};

use super::parameter::Parameter;
use super::progress::Progress;
use super::shard_format::{Buffer, encode_shard};
use super::shard_slices::{ShardSlice, bucket_slices, enclosing_range, merge_adjacent, partition_slices};
use crate::Error;
use crate::config::CheckpointWriters;
use crate::optimizer::Optimizer;
use crate::parallel::world::World;

/// A copy of the state that one rank writes, in host memory; state of a GPU is copied to pinned
/// memory.
#[derive(Debug)]
pub struct StateCopy {
    /// The run's progress.
    pub progress: Progress,
    /// Whether there are averaged weights.
    pub has_ema: bool,
    /// All parameters of the network.
    pub parameters: Vec<Parameter>,
    /// The numbers of the elements whose values the copy has.
    pub ranges: Vec<Range<usize>>,
    /// The values, buffers with more bytes per element first.
    buffers: Vec<Buffer>,
}

impl StateCopy {
    /// Copies the state after `progress.step`, and waits for the device. All ranks call it
    /// together; the copy of a rank that does not write is empty.
    ///
    /// # Errors
    /// If there is not enough memory, or a collective fails.
    pub fn capture(
        optimizer: &Optimizer,
        progress: &Progress,
        world: &World,
        writers: CheckpointWriters,
    ) -> Result<Self, Error> {
        let parameters = list_parameters(optimizer);
        let slices = select_slices(optimizer, &parameters, world, writers);
        // A rank that writes the state of others gathers it, bucket by bucket.
        let partition_count = optimizer.layout().partition_count();
        let is_gathered = partition_count > 1 && writers != CheckpointWriters::All;
        let gather = |partition: &Tensor| match is_gathered {
            true => world.all_gather_partitions(&partition.contiguous(), partition_count),
            false => Ok(partition.shallow_clone()),
        };
        let sources = optimizer.buffers();
        let mut buffers = Vec::new();
        for (name, partitions) in &sources {
            // Every network has parameters, so there is a first bucket.
            let kind = partitions.first().map_or(Kind::Float, Tensor::kind);
            buffers.push(Buffer { name, kind, values: copy_slices(partitions, &slices, gather)? });
        }
        buffers.sort_by_key(|buffer| Reverse(buffer.kind.elt_size_in_bytes()));
        Ok(Self {
            progress: progress.clone(),
            has_ema: sources.iter().any(|(name, _)| *name == "ema"),
            buffers,
            parameters,
            ranges: merge_adjacent(slices.into_iter().map(|slice| slice.elements)),
        })
    }

    /// The step after which it was copied.
    pub fn step(&self) -> u64 {
        self.progress.step
    }

    /// The state shard's file, in chunks.
    ///
    /// # Errors
    /// If the buffers do not fit each other.
    pub fn encode(&self) -> Result<impl Iterator<Item = Bytes>, String> {
        encode_shard(&self.buffers, self.ranges.iter().map(Range::len).sum())
    }
}

/// Lists the parameters of the optimizer's network.
fn list_parameters(optimizer: &Optimizer) -> Vec<Parameter> {
    let layout = optimizer.layout();
    let slots = layout.slots().iter().enumerate().map(|(index, slot)| Parameter {
        name: slot.name.clone(),
        shape: slot.shape.clone(),
        order: slot.order,
        is_frozen: layout.buckets()[slot.bucket].treatment.is_frozen,
        moment_start: optimizer.moment_start(index),
    });
    slots.collect()
}

/// Selects the slices that this rank writes.
fn select_slices(
    optimizer: &Optimizer,
    parameters: &[Parameter],
    world: &World,
    writers: CheckpointWriters,
) -> Vec<ShardSlice> {
    let (layout, partitions) = (optimizer.layout(), optimizer.layout().partition_count());
    let replicas = world.size() / partitions;
    if replicas == 1 {
        return match writers {
            CheckpointWriters::All => partition_slices(layout, optimizer.partition(), parameters),
            _ => bucket_slices(layout, world.ranks_to_save(writers), parameters),
        };
    }
    // Several ranks have the same state: those that write divide the buckets among them.
    let (mut slices, writing) = match writers {
        CheckpointWriters::All => {
            let same = (0..replicas).map(|replica| replica * partitions + optimizer.partition());
            (partition_slices(layout, optimizer.partition(), parameters), same.collect())
        }
        _ => (bucket_slices(layout, 0..partitions, parameters), world.checkpoint_writers(writers)),
    };
    slices.retain(|slice| writing[slice.bucket % writing.len()] == world.rank());
    slices
}

/// Copies slices of a buffer to the host. `gather` gives the tensor of a bucket that the slices'
/// offsets refer to.
fn copy_slices(
    partitions: &[Tensor],
    slices: &[ShardSlice],
    gather: impl Fn(&Tensor) -> Result<Tensor, Error>,
) -> Result<Vec<Bytes>, Error> {
    let mut values = Vec::new();
    for (bucket, partition) in partitions.iter().enumerate() {
        let tensor = gather(partition)?;
        let own = slices.iter().filter(|slice| slice.bucket == bucket);
        // One copy for all slices of the bucket.
        let Some(hull) = enclosing_range(own.clone().map(ShardSlice::range)) else { continue };
        let elements = guard(|| tensor.narrow(0, hull.start as i64, hull.len() as i64))?;
        let copy = Bytes::from_owner(HostCopy::new(&elements)?);
        let size = tensor.kind().elt_size_in_bytes();
        let to_bytes =
            |range: Range<usize>| size * (range.start - hull.start)..size * (range.end - hull.start);
        values.extend(own.map(|slice| copy.slice(to_bytes(slice.range()))));
    }
    Ok(values)
}
