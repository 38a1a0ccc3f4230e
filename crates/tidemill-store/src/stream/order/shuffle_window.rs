//! The order of a dataset's rows. The blocks of an epoch are permuted, and each shuffle window of
//! consecutive blocks is shuffled by row. Only the block index is kept: all blocks except one have
//! the same number of rows, so arithmetic finds the window of any position, and only the rows of
//! that window are laid out.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::BlockIndex;
use super::permutation::{Permutation, derive_key, shuffle};

/// Domains that separate the keys derived from a seed.
const BLOCK_DOMAIN: u64 = 0;
const ROW_DOMAIN: u64 = 1;
const OWNER_DOMAIN: u64 = 2;

/// The endless order of the rows of some blocks under a seed. A *position* counts rows over all
/// epochs.
#[derive(Debug, Clone)]
pub struct ShuffleOrder {
    seed: u64,
    index: Arc<BlockIndex>,
    /// Number of windows in an epoch.
    windows: u64,
}

/// A shuffle window: a part of an epoch whose rows come from a few blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Number of the window in its epoch.
    pub number: u64,
    /// The blocks of the window, as positions in the epoch's block permutation.
    pub blocks: Range<u64>,
    /// Positions of its rows.
    pub rows: Range<u64>,
}

/// A row of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowRow {
    /// The window's slot that holds the row's block.
    pub slot: u32,
    /// Index of the row in the block.
    pub row: u32,
}

/// A window with its blocks and the order of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenWindow {
    /// The window.
    pub window: Window,
    /// The block in each slot.
    pub blocks: Vec<u64>,
    /// A number drawn for the epoch. It offsets which rank owns which block.
    pub owner_offset: u64,
    /// The rows in order, numbered from slot to slot.
    rows: Vec<u32>,
    block_rows: u32,
}

impl ShuffleOrder {
    /// The order of blocks, shuffled in windows of at most `window` blocks and 2^32 rows. Returns
    /// `None` if there are no rows.
    pub fn new(seed: u64, index: Arc<BlockIndex>, window: usize) -> Option<Self> {
        let max_window = u64::from(u32::MAX / index.block_rows());
        let windows = index.blocks().div_ceil((window as u64).clamp(1, max_window));
        (windows > 0).then_some(Self { seed, index, windows })
    }

    /// The block index.
    pub fn index(&self) -> &Arc<BlockIndex> {
        &self.index
    }

    /// Rows of an epoch.
    pub fn rows(&self) -> u64 {
        self.index.rows()
    }

    /// The window that contains a position.
    pub fn window_at(&self, position: u64) -> Window {
        let (epoch, row) = (position / self.rows(), position % self.rows());
        // Compute with positions that rows would have if the last block were as long as the others.
        let short_window = self.window_of(self.permutation(epoch).position_of(self.index.blocks() - 1));
        let b = u64::from(self.index.block_rows());
        let first_row =
            |number| self.first_block(number) * b - if number > short_window { self.index.gap() } else { 0 };
        let full_row = if row < first_row(short_window + 1) { row } else { row + self.index.gap() };
        let number = self.window_of(full_row / b);
        let start = epoch * self.rows();
        Window {
            epoch,
            number,
            blocks: self.first_block(number)..self.first_block(number + 1),
            rows: start + first_row(number)..start + first_row(number + 1),
        }
    }

    /// Lays out the blocks and rows of a window.
    pub fn open(&self, window: Window) -> OpenWindow {
        let permutation = self.permutation(window.epoch);
        let mut blocks: Vec<u64> = window.blocks.clone().map(|position| permutation.at(position)).collect();
        // The block that may be short comes last in its window, so that rows can be numbered from
        // slot to slot.
        if let Some(short) = blocks.iter().position(|block| *block + 1 == self.index.blocks()) {
            let last = blocks.len() - 1;
            blocks.swap(short, last);
        }
        let mut rows: Vec<u32> = (0..(window.rows.end - window.rows.start) as u32).collect();
        shuffle(&mut rows, derive_key(derive_key(self.seed, window.epoch, ROW_DOMAIN), window.number, 0));
        // Only 32 bits, so that adding to it cannot overflow.
        let owner_offset = derive_key(self.seed, window.epoch, OWNER_DOMAIN) >> 32;
        OpenWindow { window, blocks, owner_offset, rows, block_rows: self.index.block_rows() }
    }

    fn permutation(&self, epoch: u64) -> Permutation {
        Permutation::new(self.index.blocks(), derive_key(self.seed, epoch, BLOCK_DOMAIN))
    }

    /// The first block of a window. Windows of an epoch differ by at most one block, so that none
    /// is too small to shuffle well.
    fn first_block(&self, window: u64) -> u64 {
        scale(window, self.index.blocks(), self.windows)
    }

    /// The last window that does not begin after a position in the block permutation.
    fn window_of(&self, position: u64) -> u64 {
        scale_up(position + 1, self.windows, self.index.blocks()) - 1
    }
}

impl OpenWindow {
    /// The row at a position, which must be in this window.
    pub fn row(&self, position: u64) -> WindowRow {
        let number = self.rows[(position - self.window.rows.start) as usize];
        WindowRow { slot: number / self.block_rows, row: number % self.block_rows }
    }

    /// Rows of the block in a slot.
    pub fn block_rows(&self, slot: u32) -> u32 {
        let rows = self.window.rows.end - self.window.rows.start;
        self.block_rows.min(rows as u32 - slot * self.block_rows)
    }
}

/// `a * b / c`, rounded down.
fn scale(a: u64, b: u64, c: u64) -> u64 {
    (u128::from(a) * u128::from(b) / u128::from(c)) as u64
}

/// `a * b / c`, rounded up.
fn scale_up(a: u64, b: u64, c: u64) -> u64 {
    (u128::from(a) * u128::from(b)).div_ceil(u128::from(c)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The (block, row) at `count` positions.
    fn sequence(order: &ShuffleOrder, from: u64, count: u64) -> Vec<(u64, u32)> {
        let mut rows = Vec::new();
        while (rows.len() as u64) < count {
            let position = from + rows.len() as u64;
            let open = order.open(order.window_at(position));
            let end = open.window.rows.end.min(from + count);
            rows.extend((position..end).map(|position| {
                let WindowRow { slot, row } = open.row(position);
                assert!(row < open.block_rows(slot));
                (open.blocks[slot as usize], row)
            }));
        }
        rows
    }

    fn order(seed: u64, shards: &[u64], block_rows: u32, window: usize) -> Option<ShuffleOrder> {
        ShuffleOrder::new(seed, Arc::new(BlockIndex::new(shards.iter().copied(), block_rows)), window)
    }

    fn orders() -> impl Strategy<Value = ShuffleOrder> {
        let shards = prop::collection::vec(0u64..60, 1..30);
        let orders = (any::<u64>(), shards, 1u32..20, 1usize..40);
        orders.prop_filter_map("no rows", |(seed, shards, b, window)| order(seed, &shards, b, window))
    }

    proptest! {
        #[test]
        fn every_row_comes_once_per_epoch(order in orders()) {
            let n = order.rows();
            let mut all: Vec<(u64, u32)> = Vec::new();
            for block in 0..order.index().blocks() {
                let rows = order.index().pieces(block).iter().map(|p| p.rows.end - p.rows.start).sum::<u64>();
                all.extend((0..rows as u32).map(|row| (block, row)));
            }
            let two = sequence(&order, 0, 2 * n);
            for epoch in two.chunks(n as usize) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                prop_assert_eq!(&epoch, &all);
            }
            if n >= 20 {
                prop_assert_ne!(&two[..n as usize], &two[n as usize..], "epochs differ");
                let other = ShuffleOrder { seed: order.seed ^ 1, ..order };
                prop_assert_ne!(&two[..n as usize], &sequence(&other, 0, n)[..], "seeds differ");
            }
        }

        #[test]
        fn resume_at_any_position_continues_the_order(order in orders(), at in 0.0f64..3.0) {
            let position = (order.rows() as f64 * at) as u64;
            let whole = sequence(&order, 0, position + 50);
            prop_assert_eq!(&sequence(&order, position, 50)[..], &whole[position as usize..]);
        }

        #[test]
        fn windows_are_contiguous_and_even(order in orders(), window in 1u64..40) {
            let blocks = order.index().blocks();
            let order = ShuffleOrder { windows: blocks.div_ceil(window), ..order };
            let mut position = 0;
            for number in (0..order.windows).chain([0]) {
                let open = order.open(order.window_at(position));
                prop_assert_eq!((open.window.number, open.window.rows.start), (number, position));
                let places = open.blocks.len() as u64;
                prop_assert!(places <= window && places >= blocks / order.windows, "none much smaller");
                let rows: u32 = (0..places as u32).map(|slot| open.block_rows(slot)).sum();
                prop_assert_eq!(u64::from(rows), open.window.rows.end - position);
                for inside in position..open.window.rows.end {
                    prop_assert_eq!(&order.window_at(inside), &open.window);
                }
                position = open.window.rows.end;
            }
        }
    }

    #[test]
    fn order_without_rows_is_none() {
        assert!(order(1, &[], 4, 4).is_none() && order(1, &[0, 0], 4, 4).is_none());
    }
}
