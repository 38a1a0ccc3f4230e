//! Which rank gets and which rank reads the rows of a global batch. Ranks are processes and share
//! no memory, so each block of a window has an owner: the rank that reads it whole. A rank gets
//! rows of its own blocks as far as the batch has enough of them. Rows that one rank has too many
//! of go to other ranks, which read them by range. The batch itself does not depend on any of this.

use super::batch_plan::{PlannedBatch, PlannedRow};
use super::shuffle_window::OpenWindow;
use crate::error::{Error, Result};

/// The number of ranks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldSize(u64);

/// The rows that a rank gets of a global batch, as indices into [`PlannedBatch::rows`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RankRows {
    /// All rows of the rank, ascending. Its micro-batches are chunks of them.
    pub rows: Vec<u32>,
    /// The rows among them that lie in blocks of other ranks and are read by range; ascending.
    pub by_range: Vec<u32>,
}

impl WorldSize {
    /// A world of `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Config`] if `ranks` is 0.
    pub fn new(ranks: u64) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::Config { key: "ranks", problem: "must be at least 1".into() });
        }
        Ok(Self(ranks))
    }

    /// The number of ranks.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The rank that owns the block in a slot of a window. Of any consecutive blocks of an epoch
    /// all ranks own the same number of blocks, or one more.
    pub fn owner(self, window: &OpenWindow, slot: u32) -> u64 {
        (window.owner_offset + window.window.blocks.start + u64::from(slot)) % self.0
    }

    /// Splits a batch among the ranks. All get the same number of rows, or one more if the rows
    /// cannot be divided evenly.
    pub fn share_batch(self, batch: &PlannedBatch) -> Vec<RankRows> {
        let mut owned = vec![Vec::new(); self.0 as usize];
        for (row, i) in batch.rows.iter().zip(0u32..) {
            owned[self.row_owner(batch, row) as usize].push(i);
        }
        // This boundary spreads the ranks that get one row more over the whole world.
        let boundary = |rank: usize| (rank as u64 * batch.rows.len() as u64 / self.0) as usize;
        let quota = |rank| boundary(rank + 1) - boundary(rank);
        let mut surplus: Vec<u32> = Vec::new();
        for (rank, rows) in owned.iter_mut().enumerate() {
            surplus.extend(rows.drain(quota(rank).min(rows.len())..));
        }
        surplus.sort_unstable();
        let mut surplus = surplus.into_iter();
        let shares = owned.into_iter().enumerate().map(|(rank, mut rows)| {
            let by_range: Vec<u32> = surplus.by_ref().take(quota(rank) - rows.len()).collect();
            rows.extend(&by_range);
            rows.sort_unstable();
            RankRows { rows, by_range }
        });
        shares.collect()
    }

    fn row_owner(self, batch: &PlannedBatch, row: &PlannedRow) -> u64 {
        self.owner(&batch.windows[row.window as usize].open, row.window_row.slot)
    }
}

/// A rank of a world, which gets its part of each global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    world: WorldSize,
    number: u64,
}

impl Default for Rank {
    /// The only rank of its world. It gets whole batches.
    fn default() -> Self {
        Self { world: WorldSize(1), number: 0 }
    }
}

impl Rank {
    /// Rank `number` of a world, counted from 0.
    ///
    /// # Errors
    /// [`Error::Config`] if the world has no such rank.
    pub fn new(world: WorldSize, number: u64) -> Result<Self> {
        if number >= world.0 {
            let problem = format!(
                "rank {number} does not exist: there are {} ranks, and they are numbered from 0",
                world.0
            );
            return Err(Error::Config { key: "rank", problem });
        }
        Ok(Self { world, number })
    }

    /// Indices of the rank's rows in a batch, ascending.
    pub fn rows(&self, batch: &PlannedBatch) -> Vec<u32> {
        self.world.share_batch(batch).swap_remove(self.number as usize).rows
    }

    /// Whether the rank owns the block in a slot of a window.
    pub fn is_owner(&self, window: &OpenWindow, slot: u32) -> bool {
        self.world.owner(window, slot) == self.number
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bucket::Bucket;
    use crate::stream::order::batch_plan::PlannedWindow;
    use crate::stream::order::blocks::BlockIndex;
    use crate::stream::order::shuffle_window::ShuffleOrder;

    /// A batch of the rows at the given positions of a window.
    fn batch(open: OpenWindow, positions: impl Iterator<Item = u64>) -> PlannedBatch {
        let rows =
            positions.map(|position| PlannedRow { window: 0, window_row: open.row(position) }).collect();
        let windows = vec![Arc::new(PlannedWindow { dataset: 0, open })];
        PlannedBatch { number: 0, bucket: Bucket::square(64), windows, rows }
    }

    #[test]
    fn ranks_get_their_own_rows_first_and_then_the_surplus_of_others() {
        let order = ShuffleOrder::new(3, Arc::new(BlockIndex::new([400], 10)), 40).unwrap();
        let open = order.open(order.window_at(0));
        let world = WorldSize::new(3).unwrap();
        let owners: Vec<u64> = (0..40).map(|slot| world.owner(&open, slot)).collect();
        for three in owners.windows(3) {
            assert!((0..3).all(|rank| three.contains(&rank)), "ranks own blocks in turn: {owners:?}");
        }

        // All ten rows belong to rank 1. It keeps the first 3, and the other ranks get theirs by
        // range.
        let own = |open: &OpenWindow, position| world.owner(open, open.row(position).slot) == 1;
        let positions: Vec<u64> = (0..400).filter(|position| own(&open, *position)).take(10).collect();
        let shares = world.share_batch(&batch(open, positions.into_iter()));
        let foreign = |rows: &[u32]| RankRows { rows: rows.to_vec(), by_range: rows.to_vec() };
        let expected =
            [foreign(&[3, 4, 5]), RankRows { rows: vec![0, 1, 2], by_range: vec![] }, foreign(&[6, 7, 8, 9])];
        assert_eq!(shares, expected);
    }

    #[test]
    fn rank_outside_of_the_world_is_refused() {
        assert!(WorldSize::new(0).is_err());
        let world = WorldSize::new(3).unwrap();
        assert!(Rank::new(world, 2).is_ok() && Rank::new(world, 3).is_err());
    }
}
