//! Divides shards into the blocks that are permuted. All blocks have the same number of rows, so
//! that arithmetic finds the block of any position. A shard gives as many whole blocks as it fills.
//! The remaining rows of all shards, in the order of the manifest, are concatenated and cut into
//! *packs*, which are blocks of several pieces. Only the last pack may be shorter. The index holds
//! two numbers per shard.

use std::ops::Range;

/// The blocks of a list of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockIndex {
    block_rows: u32,
    /// Number of whole blocks before each shard, and in total.
    whole_before: Vec<u64>,
    /// Number of remaining rows before each shard, and in total.
    tails_before: Vec<u64>,
}

/// Consecutive rows of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index of the shard in the manifest.
    pub shard: usize,
    /// Range of rows in the shard.
    pub rows: Range<u64>,
}

impl BlockIndex {
    /// Indexes shards by their numbers of rows (0 is allowed), with `block_rows` (at least 1) rows
    /// per block.
    pub fn new(shard_rows: impl IntoIterator<Item = u64>, block_rows: u32) -> Self {
        let shard_rows = shard_rows.into_iter();
        let block_rows = block_rows.max(1);
        let b = u64::from(block_rows);
        let capacity = shard_rows.size_hint().0 + 1;
        let mut index = Self {
            block_rows,
            whole_before: Vec::with_capacity(capacity),
            tails_before: Vec::with_capacity(capacity),
        };
        let (mut whole, mut tails) = (0, 0);
        index.whole_before.push(whole);
        index.tails_before.push(tails);
        for rows in shard_rows {
            whole += rows / b;
            tails += rows % b;
            index.whole_before.push(whole);
            index.tails_before.push(tails);
        }
        index
    }

    /// Rows of every block except perhaps the last.
    pub fn block_rows(&self) -> u32 {
        self.block_rows
    }

    /// Number of blocks. They are numbered from 0, the packs last.
    pub fn blocks(&self) -> u64 {
        self.whole_blocks() + self.tail_rows().div_ceil(self.block_size())
    }

    /// Rows of all shards.
    pub fn rows(&self) -> u64 {
        self.whole_blocks() * self.block_size() + self.tail_rows()
    }

    /// How many rows the last block has less than the others.
    pub fn gap(&self) -> u64 {
        self.blocks() * self.block_size() - self.rows()
    }

    /// Whether a block consists of remaining rows of shards, which are read by range.
    pub fn is_pack(&self, block: u64) -> bool {
        block >= self.whole_blocks()
    }

    /// The pieces of a block, in order.
    pub fn pieces(&self, block: u64) -> Vec<Piece> {
        let rows = self.block_size().min(self.rows() - block * self.block_size());
        let (mut pieces, mut row) = (Vec::new(), 0);
        while row < rows {
            let (shard, first) = self.locate(block, row);
            let end = self.shard_rows(shard).min(first + rows - row);
            pieces.push(Piece { shard, rows: first..end });
            row += end - first;
        }
        pieces
    }

    /// The shard of a block's row, and the row's index in it.
    pub fn locate(&self, block: u64, row: u64) -> (usize, u64) {
        match block.checked_sub(self.whole_blocks()) {
            None => {
                let shard = find_shard(&self.whole_before, block);
                (shard, (block - self.whole_before[shard]) * self.block_size() + row)
            }
            Some(pack) => {
                let tail = pack * self.block_size() + row;
                let shard = find_shard(&self.tails_before, tail);
                // The whole blocks of a shard come before its remaining rows.
                let whole = self.whole_before[shard + 1] - self.whole_before[shard];
                (shard, whole * self.block_size() + tail - self.tails_before[shard])
            }
        }
    }

    /// Heap memory of the index in bytes.
    pub fn heap_bytes(&self) -> usize {
        (self.whole_before.capacity() + self.tails_before.capacity()) * size_of::<u64>()
    }

    fn block_size(&self) -> u64 {
        u64::from(self.block_rows)
    }

    fn whole_blocks(&self) -> u64 {
        self.whole_before.last().copied().unwrap_or(0)
    }

    fn tail_rows(&self) -> u64 {
        self.tails_before.last().copied().unwrap_or(0)
    }

    fn shard_rows(&self, shard: usize) -> u64 {
        let count = |before: &[u64]| before[shard + 1] - before[shard];
        count(&self.whole_before) * self.block_size() + count(&self.tails_before)
    }
}

/// The shard that holds item `i`, given the number of items before each shard. Shards without items
/// are skipped.
fn find_shard(before: &[u64], i: u64) -> usize {
    before.partition_point(|before| *before <= i) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tails_are_packed_in_manifest_order() {
        // The shards leave 2, 3, 0, 1 and 2 rows.
        let index = BlockIndex::new([10, 3, 0, 5, 4, 2], 4);
        let piece = |shard, rows| Piece { shard, rows };
        assert_eq!((index.blocks(), index.rows(), index.gap()), (6, 24, 0));
        assert_eq!(index.pieces(1), [piece(0, 4..8)]);
        assert_eq!(index.pieces(2), [piece(3, 0..4)]);
        assert_eq!(index.pieces(4), [piece(0, 8..10), piece(1, 0..2)]);
        assert_eq!(index.pieces(5), [piece(1, 2..3), piece(3, 4..5), piece(5, 0..2)]);
        assert!(index.is_pack(4) && !index.is_pack(3));
        assert_eq!((BlockIndex::new([0, 0], 4).blocks(), BlockIndex::new([], 4).rows()), (0, 0));
    }

    proptest! {
        #[test]
        fn every_row_is_in_exactly_one_block(
            shards in prop::collection::vec(prop_oneof![Just(0u64), 0u64..50], 0..40),
            block_rows in 1u32..20,
        ) {
            let index = BlockIndex::new(shards.iter().copied(), block_rows);
            let mut rows: Vec<(usize, u64)> = Vec::new();
            for block in 0..index.blocks() {
                let before = rows.len();
                for Piece { shard, rows: piece } in index.pieces(block) {
                    rows.extend(piece.map(|row| (shard, row)));
                }
                let gap = if block + 1 == index.blocks() { index.gap() } else { 0 };
                prop_assert_eq!((rows.len() - before) as u64, u64::from(block_rows) - gap);
                for (i, shard_row) in rows[before..].iter().enumerate() {
                    prop_assert_eq!(index.locate(block, i as u64), *shard_row);
                }
            }
            rows.sort_unstable();
            let all: Vec<(usize, u64)> =
                shards.iter().enumerate().flat_map(|(shard, n)| (0..*n).map(move |row| (shard, row))).collect();
            prop_assert_eq!(rows, all);
        }
    }
}
