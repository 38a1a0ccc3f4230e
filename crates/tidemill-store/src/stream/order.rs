//! The order of a stream's rows. An epoch's blocks are permuted; each window of so many consecutive blocks of
//! that order is shuffled by row. Nothing is kept but the number of rows of each block and one window's
//! permutation.

use super::permutation::{Permutation, key, shuffle};

/// Domains of the keys drawn from a seed.
const BLOCKS: u64 = 0;
const ROWS: u64 = 1;

/// The order of the rows of some blocks under a seed.
#[derive(Debug, Clone)]
pub struct Order {
    seed: u64,
    block_rows: Vec<u32>,
    window: usize,
    rows: u64,
}

/// A stretch of an epoch whose rows come from a few blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Its number in the epoch.
    pub number: usize,
    /// Its first rows that are not wanted, because an earlier run has had them.
    pub skip: u64,
}

/// A row of a window: which of the window's blocks, and which row of that.
pub type Place = (u32, u32);

impl Order {
    /// The order of blocks with so many rows each, shuffled in windows of `window` blocks. Blocks without
    /// rows are allowed as long as one has some.
    pub fn new(seed: u64, block_rows: Vec<u32>, window: usize) -> Self {
        let rows = block_rows.iter().map(|rows| u64::from(*rows)).sum();
        Self { seed, block_rows, window: window.max(1), rows }
    }

    /// Rows of an epoch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The windows from a position on, for ever.
    pub fn windows_from(&self, position: u64) -> impl Iterator<Item = Window> {
        let epoch = position / self.rows.max(1);
        let mut skip = position % self.rows.max(1);
        let count = self.block_rows.len().div_ceil(self.window).max(1);
        let mut number = 0;
        while number + 1 < count {
            let rows = self.window_rows(epoch, number);
            if skip < rows {
                break;
            }
            skip -= rows;
            number += 1;
        }
        let first = Window { epoch, number, skip };
        std::iter::successors(Some(first), move |last| {
            let number = last.number + 1;
            let last_of_epoch = number == count;
            let epoch = last.epoch + u64::from(last_of_epoch);
            Some(Window { epoch, number: if last_of_epoch { 0 } else { number }, skip: 0 })
        })
    }

    /// The blocks of a window, by their index.
    pub fn blocks(&self, window: Window) -> Vec<usize> {
        self.window_blocks(window.epoch, window.number).collect()
    }

    /// The rows of a window in their order, without those skipped.
    pub fn places(&self, window: Window) -> Vec<Place> {
        let rows = self.window_blocks(window.epoch, window.number).map(|block| self.block_rows[block]);
        let mut places: Vec<Place> =
            rows.zip(0..).flat_map(|(rows, block)| (0..rows).map(move |row| (block, row))).collect();
        shuffle(&mut places, key(key(self.seed, window.epoch, ROWS), window.number as u64, 0));
        places.drain(..(window.skip as usize).min(places.len()));
        places
    }

    fn window_blocks(&self, epoch: u64, number: usize) -> impl Iterator<Item = usize> {
        let n = self.block_rows.len();
        let permutation = Permutation::new(n as u64, key(self.seed, epoch, BLOCKS));
        let places = (number * self.window).min(n)..((number + 1) * self.window).min(n);
        places.map(move |place| permutation.at(place as u64) as usize)
    }

    fn window_rows(&self, epoch: u64, number: usize) -> u64 {
        self.window_blocks(epoch, number).map(|block| u64::from(self.block_rows[block])).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rows at some positions, as (block, row).
    fn sequence(order: &Order, from: u64, count: usize) -> Vec<(usize, u32)> {
        let rows = order.windows_from(from).flat_map(|window| {
            let blocks = order.blocks(window);
            order.places(window).into_iter().map(move |(block, row)| (blocks[block as usize], row))
        });
        rows.take(count).collect()
    }

    fn layouts() -> impl Strategy<Value = (u64, Vec<u32>, usize)> {
        let blocks =
            prop::collection::vec(0u32..40, 1..30).prop_filter("no rows", |b| b.iter().sum::<u32>() > 0);
        (any::<u64>(), blocks, 1usize..40)
    }

    proptest! {
        #[test]
        fn every_row_comes_once_an_epoch((seed, blocks, window) in layouts()) {
            let order = Order::new(seed, blocks.clone(), window);
            let n = order.rows() as usize;
            let mut all: Vec<(usize, u32)> =
                blocks.iter().enumerate().flat_map(|(b, rows)| (0..*rows).map(move |row| (b, row))).collect();
            all.sort_unstable();
            let two = sequence(&order, 0, 2 * n);
            for epoch in two.chunks(n) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                prop_assert_eq!(&epoch, &all);
            }
            if n >= 20 {
                prop_assert_ne!(&two[..n], &two[n..], "epochs differ");
                let other = Order::new(seed ^ 1, blocks, window);
                prop_assert_ne!(&two[..n], &sequence(&other, 0, n)[..], "seeds differ");
            }
        }

        #[test]
        fn any_position_goes_on_as_the_whole((seed, blocks, window) in layouts(), at in 0.0f64..3.0) {
            let order = Order::new(seed, blocks, window);
            let position = (order.rows() as f64 * at) as u64;
            let whole = sequence(&order, 0, position as usize + 50);
            prop_assert_eq!(&sequence(&order, position, 50)[..], &whole[position as usize..]);
        }
    }

    #[test]
    fn a_window_holds_no_other_blocks_than_its_own() {
        let order = Order::new(7, vec![10; 12], 4);
        for (i, rows) in sequence(&order, 0, 240).chunks(40).enumerate() {
            let mut blocks: Vec<usize> = rows.iter().map(|(block, _)| *block).collect();
            blocks.sort_unstable();
            blocks.dedup();
            assert_eq!(blocks.len(), 4, "window {i}");
        }
    }
}
