//! The ranks of a run: how many there are, which one this process is, and its share of batches and
//! checkpoints.

use std::ops::Range;

use tidemill_store::stream::{Rank, WorldSize};
use tidemill_torch::ProcessGroup;

use crate::config::CheckpointWriters;
use crate::error::Error;

/// The ranks of a run, and which one this process is.
#[derive(Clone, Debug)]
pub struct World {
    /// The process group for tensors on the training device; `None` with one rank.
    pub(super) group: Option<ProcessGroup>,
    /// A second group of the same ranks, for tensors on the CPU. It has threads of its own, so that
    /// its collectives do not wait for those of the device.
    pub(super) host_group: Option<ProcessGroup>,
    rank: usize,
    size: usize,
    ranks_per_node: usize,
}

impl World {
    /// A process that trains by itself.
    pub fn single_process() -> Self {
        Self { group: None, host_group: None, rank: 0, size: 1, ranks_per_node: 1 }
    }

    /// Rank `rank` of the process group that is registered as `name`. Nodes have
    /// `ranks_per_node` consecutive ranks each. `host_group` is the name of another group of the
    /// same ranks, for tensors on the CPU.
    ///
    /// # Errors
    /// [`Error::World`] if these numbers contradict each other, or if there is no such group.
    pub fn new(
        name: &str,
        host_group: &str,
        rank: usize,
        size: usize,
        ranks_per_node: usize,
    ) -> Result<Self, Error> {
        if rank >= size || ranks_per_node == 0 || !size.is_multiple_of(ranks_per_node) {
            return Err(Error::World(format!(
                "invalid world: rank {rank} of {size} ranks, {ranks_per_node} ranks per node; the rank must be below \
                 the number of ranks, which must be a multiple of the ranks per node"
            )));
        }
        let (group, host_group) =
            (ProcessGroup::new(name, size as i64)?, ProcessGroup::new(host_group, size as i64)?);
        Ok(Self { group: Some(group), host_group: Some(host_group), rank, size, ranks_per_node })
    }

    /// A rank of one node without a process group: it has its share of everything, and communicates
    /// nothing.
    #[cfg(test)]
    pub(crate) fn without_group(rank: usize, size: usize) -> Self {
        Self { group: None, host_group: None, rank, size, ranks_per_node: size }
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The number of ranks on each node.
    pub(super) fn ranks_per_node(&self) -> usize {
        self.ranks_per_node
    }

    /// Whether this is rank 0, which logs and writes for all ranks.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// The process group for tensors on the training device; `None` with one rank.
    pub(crate) fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// This rank's share of each global batch, for the stream.
    pub(crate) fn stream_rank(&self) -> Result<Rank, Error> {
        Ok(Rank::new(WorldSize::new(self.size as u64)?, self.rank as u64)?)
    }

    /// The number of this rank's rows in a global batch.
    pub fn local_batch_size(&self, global_batch: usize) -> usize {
        (self.rank + 1) * global_batch / self.size - self.first_local_row(global_batch)
    }

    /// The position of this rank's first row in a global batch.
    pub fn first_local_row(&self, global_batch: usize) -> usize {
        self.rank * global_batch / self.size
    }

    /// The ranks that write checkpoints.
    pub(crate) fn checkpoint_writers(&self, writers: CheckpointWriters) -> Vec<usize> {
        (0..self.size).step_by(self.ranks_per_writer(writers)).collect()
    }

    /// The ranks whose state this rank writes to checkpoints; empty if it does not write.
    pub(crate) fn ranks_to_save(&self, writers: CheckpointWriters) -> Range<usize> {
        let each = self.ranks_per_writer(writers);
        if self.rank.is_multiple_of(each) { self.rank..self.rank + each } else { 0..0 }
    }

    fn ranks_per_writer(&self, writers: CheckpointWriters) -> usize {
        match writers {
            CheckpointWriters::All => 1,
            CheckpointWriters::Node => self.ranks_per_node,
            CheckpointWriters::First => self.size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_batch_sizes_add_up_and_differ_by_at_most_one() {
        for (size, rows) in [(1, 8), (3, 8), (4, 7), (5, 5)] {
            let share = |rank| World::without_group(rank, size).local_batch_size(rows);
            let shares: Vec<usize> = (0..size).map(share).collect();
            assert_eq!(shares.iter().sum::<usize>(), rows);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }
}
