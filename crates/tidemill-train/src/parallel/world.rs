//! The ranks of a run: how many there are, which one this process is, and its share of batches and
//! checkpoints.

use std::ops::Range;

use tidemill_store::stream::{Rank, WorldSize};
use tidemill_torch::ProcessGroup;

use crate::config::{CheckpointWriters, Sharding};
use crate::error::Error;

/// The ranks of a run, and which one this process is.
#[derive(Clone, Debug)]
pub struct World {
    /// The process group for tensors on the training device; `None` with one rank.
    pub(super) group: Option<ProcessGroup>,
    /// A second group of the same ranks, for tensors on the CPU. It has threads of its own, so that
    /// its collectives do not wait for those of the device.
    pub(super) host_group: Option<ProcessGroup>,
    /// The ranks of this node, and the ranks that have this rank's place on every node; `None` unless there
    /// are several nodes of several ranks.
    node_groups: Option<NodeGroups>,
    rank: usize,
    size: usize,
    ranks_per_node: usize,
}

/// The process groups of a rank for tensors on the training device, besides that of all ranks.
#[derive(Clone, Debug)]
struct NodeGroups {
    /// The ranks of this node.
    node: ProcessGroup,
    /// The ranks that have this rank's place on every node.
    replicas: ProcessGroup,
}

impl World {
    /// A process that trains by itself.
    pub fn single_process() -> Self {
        Self { group: None, host_group: None, node_groups: None, rank: 0, size: 1, ranks_per_node: 1 }
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
        let (group, host_group) = (Some(group), Some(host_group));
        Ok(Self { group, host_group, node_groups: None, rank, size, ranks_per_node })
    }

    /// This world with the names of two more groups: of the ranks of this node, and of the ranks that have
    /// this rank's place on every node.
    ///
    /// # Errors
    /// If a name holds a NUL byte.
    pub fn with_node_groups(self, node: &str, replicas: &str) -> Result<Self, Error> {
        let nodes = self.size / self.ranks_per_node;
        let node_groups = NodeGroups {
            node: ProcessGroup::new(node, self.ranks_per_node as i64)?,
            replicas: ProcessGroup::new(replicas, nodes as i64)?,
        };
        Ok(Self { node_groups: Some(node_groups), ..self })
    }

    /// A rank of one node without a process group: it has its share of everything, and communicates
    /// nothing.
    #[cfg(test)]
    pub(crate) fn without_group(rank: usize, size: usize) -> Self {
        Self { group: None, host_group: None, node_groups: None, rank, size, ranks_per_node: size }
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

    /// The number of ranks that share the state of a network.
    ///
    /// # Errors
    /// [`Error::World`] if nodes are to share it and there are no groups of their ranks.
    pub(crate) fn partition_count(&self, sharding: Sharding) -> Result<usize, Error> {
        let count = sharding.partitions(self.size as u64, self.ranks_per_node as u64) as usize;
        let has_groups = self.node_groups.is_some() || count == 1 || count == self.size;
        let missing = "train.sharding = \"hybrid_shard\" needs process groups of each node's ranks";
        has_groups.then_some(count).ok_or_else(|| Error::World(missing.into()))
    }

    /// The ranks that have all partitions together, if the state is shared by so many; `None` if this rank
    /// has all of it.
    pub(crate) fn shard_group(&self, partition_count: usize) -> Option<&ProcessGroup> {
        match partition_count {
            1 => None,
            all if all == self.size => self.group.as_ref(),
            _ => self.node_groups.as_ref().map(|groups| &groups.node),
        }
    }

    /// The ranks that have the same partition as this rank, if the state is shared by so many; `None` if no
    /// other rank has.
    pub(crate) fn replica_group(&self, partition_count: usize) -> Option<&ProcessGroup> {
        match partition_count {
            1 => self.group.as_ref(),
            all if all == self.size => None,
            _ => self.node_groups.as_ref().map(|groups| &groups.replicas),
        }
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
