//! Who gets and who reads which rows of a global batch. Each block of a window has an owner, a node that reads it whole.
//! A node's ranks get rows of its own blocks as far as there are enough of them in the batch; only what some nodes
//! have too many of, others read by range. The batch itself does not depend on any of this.

use super::interleave::Interleave;
use super::order::OpenWindow;
use super::plan::{PlannedBatch, PlannedRow};
use crate::error::{Error, Result};

/// The nodes of a run and their ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Ranks of the nodes before each node, and of all.
    first_rank: Vec<u64>,
    /// Nodes own blocks in turn, by their ranks.
    turns: Interleave,
}

/// What a node gets of a global batch, as places in [`PlannedBatch::rows`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeShare {
    /// The rows of each of its ranks, ascending; a rank's micro-batches are chunks of them.
    pub ranks: Vec<Vec<u32>>,
    /// Those of them that lie in other nodes' blocks, to be read by range; ascending.
    pub by_range: Vec<u32>,
}

impl Cluster {
    /// Nodes with so many ranks each; ranks are numbered from node to node.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no rank.
    pub fn new(ranks: &[u32]) -> Result<Self> {
        let weights: Vec<u64> = ranks.iter().map(|ranks| u64::from(*ranks)).collect();
        let turns = Interleave::new(&weights).ok_or_else(|| Error::Config {
            key: "nodes",
            problem: "there must be at least one rank".into(),
        })?;
        let mut first_rank = vec![0];
        first_rank.extend(weights.iter().scan(0, |sum, ranks| {
            *sum += ranks;
            Some(*sum)
        }));
        Ok(Self { first_rank, turns })
    }

    /// Nodes.
    pub fn nodes(&self) -> usize {
        self.first_rank.len() - 1
    }

    /// Ranks of all nodes.
    pub fn ranks(&self) -> u64 {
        self.first_rank[self.nodes()]
    }

    /// The node that owns the block in a slot of a window. Of any consecutive blocks of an epoch the nodes own as many as
    /// their ranks entitle them to, but for one or two.
    pub fn owner(&self, window: &OpenWindow, slot: u32) -> usize {
        self.turns.at(window.turn + window.window.places.start + u64::from(slot)).0
    }

    /// The slots of a window whose blocks a node reads whole.
    pub fn owned(&self, window: &OpenWindow, node: usize) -> impl Iterator<Item = u32> {
        (0..window.blocks.len() as u32).filter(move |slot| self.owner(window, *slot) == node)
    }

    /// What each node gets of a batch. Ranks get equally many rows, but for one if they cannot be divided.
    pub fn share(&self, batch: &PlannedBatch) -> Vec<NodeShare> {
        let mut given = vec![Vec::new(); self.nodes()];
        for (row, i) in batch.rows.iter().zip(0u32..) {
            given[self.owner_of(batch, row)].push(i);
        }
        // Rank r's rows end where r + 1 ranks would have had theirs, so that those with one more are spread over the nodes.
        let cut = |rank: u64| (rank * batch.rows.len() as u64 / self.ranks()) as usize;
        let quota = |node: usize| cut(self.first_rank[node + 1]) - cut(self.first_rank[node]);
        let mut surplus: Vec<u32> = Vec::new();
        for (node, rows) in given.iter_mut().enumerate() {
            surplus.extend(rows.drain(quota(node).min(rows.len())..));
        }
        surplus.sort_unstable();
        let mut surplus = surplus.into_iter();
        let shares = given.into_iter().enumerate().map(|(node, mut rows)| {
            let by_range: Vec<u32> = surplus.by_ref().take(quota(node) - rows.len()).collect();
            rows.extend(&by_range);
            rows.sort_unstable();
            let first = cut(self.first_rank[node]);
            let ranks = self.first_rank[node]..self.first_rank[node + 1];
            let ranks = ranks.map(|rank| rows[cut(rank) - first..cut(rank + 1) - first].to_vec());
            NodeShare { ranks: ranks.collect(), by_range }
        });
        shares.collect()
    }

    fn owner_of(&self, batch: &PlannedBatch, row: &PlannedRow) -> usize {
        self.owner(&batch.windows[row.window as usize].open, row.place.slot)
    }
}

/// The place of a rank, which gets its part of each global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    cluster: Cluster,
    node: usize,
    /// Which of the node's ranks.
    rank: usize,
}

impl Default for Seat {
    /// The only rank, which gets whole batches.
    fn default() -> Self {
        Self { cluster: Cluster { first_rank: vec![0, 1], turns: Interleave::single() }, node: 0, rank: 0 }
    }
}

impl Seat {
    /// That of rank `rank` of a cluster.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none.
    pub fn new(cluster: Cluster, rank: u64) -> Result<Self> {
        if rank >= cluster.ranks() {
            let problem =
                format!("{rank} is none of the {} ranks, which are numbered from 0", cluster.ranks());
            return Err(Error::Config { key: "rank", problem });
        }
        let node = cluster.first_rank.partition_point(|first| *first <= rank) - 1;
        let first = cluster.first_rank[node];
        Ok(Self { cluster, node, rank: (rank - first) as usize })
    }

    /// Which rows of a batch are the rank's, ascending.
    pub fn rows(&self, batch: &PlannedBatch) -> Vec<u32> {
        self.cluster.share(batch).swap_remove(self.node).ranks.swap_remove(self.rank)
    }

    /// Whether the rank's node owns a block.
    pub fn owns(&self, window: &OpenWindow, slot: u32) -> bool {
        self.cluster.owner(window, slot) == self.node
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bucket::Bucket;
    use crate::stream::blocks::BlockIndex;
    use crate::stream::order::Order;
    use crate::stream::plan::PlannedWindow;

    /// A batch of the rows at some positions of a window.
    fn batch(open: OpenWindow, positions: impl Iterator<Item = u64>) -> PlannedBatch {
        let rows = positions.map(|position| PlannedRow { window: 0, place: open.row(position) }).collect();
        let windows = vec![Arc::new(PlannedWindow { dataset: 0, open })];
        PlannedBatch { number: 0, bucket: Bucket::square(64), windows, rows }
    }

    #[test]
    fn nodes_get_their_own_rows_and_what_others_have_too_many_of() {
        let order = Order::new(3, Arc::new(BlockIndex::new([400], 10)), 40).unwrap();
        let open = order.open(order.window_at(0));
        let cluster = Cluster::new(&[2, 1]).unwrap();
        let owners: Vec<usize> = (0..40).map(|slot| cluster.owner(&open, slot)).collect();
        for three in owners.windows(3) {
            assert_eq!(three.iter().filter(|owner| **owner == 0).count(), 2, "by ranks: {owners:?}");
        }
        let slots: Vec<u32> = cluster.owned(&open, 1).collect();
        assert!(slots.iter().all(|slot| owners[*slot as usize] == 1) && slots.len() >= 13);

        // Ten rows of which all belong to node 0: two of its ranks keep the first 6, the other node gets 4 by range.
        let own = |open: &OpenWindow, position| cluster.owner(open, open.row(position).slot) == 0;
        let positions: Vec<u64> = (0..400).filter(|position| own(&open, *position)).take(10).collect();
        let shares = cluster.share(&batch(open, positions.into_iter()));
        assert_eq!(shares[0], NodeShare { ranks: vec![vec![0, 1, 2], vec![3, 4, 5]], by_range: vec![] });
        assert_eq!(shares[1], NodeShare { ranks: vec![vec![6, 7, 8, 9]], by_range: vec![6, 7, 8, 9] });
    }

    #[test]
    fn a_cluster_has_ranks() {
        assert!(Cluster::new(&[]).is_err() && Cluster::new(&[0, 0]).is_err());
        let cluster = Cluster::new(&[3, 0, 1]).unwrap();
        assert_eq!((cluster.nodes(), cluster.ranks()), (3, 4));
    }
}
