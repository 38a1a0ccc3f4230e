//! Who gets and who reads which rows of a global batch. Each block of a window has an owner, a rank that reads it whole, for ranks are
//! processes and share no memory. A rank gets rows of its own blocks as far as there are enough of them in the batch; only what some
//! ranks have too many of, others read by range. The batch itself does not depend on any of this.

use super::batch_plan::{PlannedBatch, PlannedRow};
use super::shuffle_window::OpenWindow;
use crate::error::{Error, Result};

/// How many ranks a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks(u64);

/// What a rank gets of a global batch, as places in [`PlannedBatch::rows`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Share {
    /// Its rows, ascending; its micro-batches are chunks of them.
    pub rows: Vec<u32>,
    /// Those of them that lie in other ranks' blocks, to be read by range; ascending.
    pub by_range: Vec<u32>,
}

impl Ranks {
    /// So many.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none.
    pub fn new(ranks: u64) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::Config { key: "ranks", problem: "must be at least 1".into() });
        }
        Ok(Self(ranks))
    }

    /// Their number.
    pub fn count(self) -> u64 {
        self.0
    }

    /// The rank that owns the block in a slot of a window. Of any consecutive blocks of an epoch the ranks own equally many, but
    /// for one.
    pub fn owner(self, window: &OpenWindow, slot: u32) -> u64 {
        (window.turn + window.window.places.start + u64::from(slot)) % self.0
    }

    /// What each rank gets of a batch: equally many rows, but for one if they cannot be divided.
    pub fn share(self, batch: &PlannedBatch) -> Vec<Share> {
        let mut given = vec![Vec::new(); self.0 as usize];
        for (row, i) in batch.rows.iter().zip(0u32..) {
            given[self.owner_of(batch, row) as usize].push(i);
        }
        // Rank r's rows end where r + 1 ranks would have had theirs, so that those with one more are spread over all.
        let cut = |rank: usize| (rank as u64 * batch.rows.len() as u64 / self.0) as usize;
        let quota = |rank| cut(rank + 1) - cut(rank);
        let mut surplus: Vec<u32> = Vec::new();
        for (rank, rows) in given.iter_mut().enumerate() {
            surplus.extend(rows.drain(quota(rank).min(rows.len())..));
        }
        surplus.sort_unstable();
        let mut surplus = surplus.into_iter();
        let shares = given.into_iter().enumerate().map(|(rank, mut rows)| {
            let by_range: Vec<u32> = surplus.by_ref().take(quota(rank) - rows.len()).collect();
            rows.extend(&by_range);
            rows.sort_unstable();
            Share { rows, by_range }
        });
        shares.collect()
    }

    fn owner_of(self, batch: &PlannedBatch, row: &PlannedRow) -> u64 {
        self.owner(&batch.windows[row.window as usize].open, row.place.slot)
    }
}

/// The place of a rank, which gets its part of each global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    ranks: Ranks,
    rank: u64,
}

impl Default for Seat {
    /// The only rank, which gets whole batches.
    fn default() -> Self {
        Self { ranks: Ranks(1), rank: 0 }
    }
}

impl Seat {
    /// That of rank `rank` of so many.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none.
    pub fn new(ranks: Ranks, rank: u64) -> Result<Self> {
        if rank >= ranks.0 {
            let problem = format!("{rank} is none of the {} ranks, which are numbered from 0", ranks.0);
            return Err(Error::Config { key: "rank", problem });
        }
        Ok(Self { ranks, rank })
    }

    /// Which rows of a batch are the rank's, ascending.
    pub fn rows(&self, batch: &PlannedBatch) -> Vec<u32> {
        self.ranks.share(batch).swap_remove(self.rank as usize).rows
    }

    /// Whether the rank owns a block.
    pub fn owns(&self, window: &OpenWindow, slot: u32) -> bool {
        self.ranks.owner(window, slot) == self.rank
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bucket::Bucket;
    use crate::stream::order::batch_plan::PlannedWindow;
    use crate::stream::order::blocks::BlockIndex;
    use crate::stream::order::shuffle_window::Order;

    /// A batch of the rows at some positions of a window.
    fn batch(open: OpenWindow, positions: impl Iterator<Item = u64>) -> PlannedBatch {
        let rows = positions.map(|position| PlannedRow { window: 0, place: open.row(position) }).collect();
        let windows = vec![Arc::new(PlannedWindow { dataset: 0, open })];
        PlannedBatch { number: 0, bucket: Bucket::square(64), windows, rows }
    }

    #[test]
    fn ranks_get_their_own_rows_and_what_others_have_too_many_of() {
        let order = Order::new(3, Arc::new(BlockIndex::new([400], 10)), 40).unwrap();
        let open = order.open(order.window_at(0));
        let ranks = Ranks::new(3).unwrap();
        let owners: Vec<u64> = (0..40).map(|slot| ranks.owner(&open, slot)).collect();
        for three in owners.windows(3) {
            assert!((0..3).all(|rank| three.contains(&rank)), "in turn: {owners:?}");
        }

        // Ten rows of which all belong to rank 1: it keeps the first 3, the others get theirs by range.
        let own = |open: &OpenWindow, position| ranks.owner(open, open.row(position).slot) == 1;
        let positions: Vec<u64> = (0..400).filter(|position| own(&open, *position)).take(10).collect();
        let shares = ranks.share(&batch(open, positions.into_iter()));
        let foreign = |rows: &[u32]| Share { rows: rows.to_vec(), by_range: rows.to_vec() };
        let expected =
            [foreign(&[3, 4, 5]), Share { rows: vec![0, 1, 2], by_range: vec![] }, foreign(&[6, 7, 8, 9])];
        assert_eq!(shares, expected);
    }

    #[test]
    fn a_rank_is_one_of_them() {
        assert!(Ranks::new(0).is_err());
        let ranks = Ranks::new(3).unwrap();
        assert!(Seat::new(ranks, 2).is_ok() && Seat::new(ranks, 3).is_err());
    }
}
