//! The blocks that an order permutes: stretches of exactly the same number of rows, so that arithmetic finds the block
//! of any position. A shard gives as many as it fills. What is left at the shards' ends, in the order of the manifest,
//! is laid end to end and cut into *packs*, blocks of several pieces; only the last pack may be shorter. Nothing
//! is kept but two numbers per shard.

use std::ops::Range;

/// The blocks of some shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockIndex {
    block_rows: u32,
    /// Whole blocks in the shards before each shard, and in all.
    whole_before: Vec<u64>,
    /// Rows at the ends of the shards before each shard, and of all.
    tails_before: Vec<u64>,
}

/// Consecutive rows of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The shard's place in the manifest.
    pub shard: usize,
    /// Its rows.
    pub rows: Range<u64>,
}

impl BlockIndex {
    /// The blocks of shards with so many rows each (0 is allowed), `block_rows` (at least 1) rows to a block.
    pub fn new(shard_rows: impl IntoIterator<Item = u64>, block_rows: u32) -> Self {
        let shard_rows = shard_rows.into_iter();
        let block_rows = block_rows.max(1);
        let b = u64::from(block_rows);
        let room = shard_rows.size_hint().0 + 1;
        let mut index = Self {
            block_rows,
            whole_before: Vec::with_capacity(room),
            tails_before: Vec::with_capacity(room),
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

    /// Rows of every block but perhaps the last.
    pub fn block_rows(&self) -> u32 {
        self.block_rows
    }

    /// Blocks; they are numbered from 0, the packs last.
    pub fn blocks(&self) -> u64 {
        self.whole() + self.tails().div_ceil(self.b())
    }

    /// Rows of all shards.
    pub fn rows(&self) -> u64 {
        self.whole() * self.b() + self.tails()
    }

    /// How many rows the last block falls short of the others.
    pub fn gap(&self) -> u64 {
        self.blocks() * self.b() - self.rows()
    }

    /// Whether a block is made of shards' ends, each of which is read by range.
    pub fn is_pack(&self, block: u64) -> bool {
        block >= self.whole()
    }

    /// Where the rows of a block lie, in their order.
    pub fn pieces(&self, block: u64) -> Vec<Piece> {
        let rows = self.b().min(self.rows() - block * self.b());
        let (mut pieces, mut row) = (Vec::new(), 0);
        while row < rows {
            let (shard, first) = self.locate(block, row);
            let end = self.shard_rows(shard).min(first + rows - row);
            pieces.push(Piece { shard, rows: first..end });
            row += end - first;
        }
        pieces
    }

    /// The shard of a block's row, and its row there.
    pub fn locate(&self, block: u64, row: u64) -> (usize, u64) {
        match block.checked_sub(self.whole()) {
            None => {
                let shard = holder(&self.whole_before, block);
                (shard, (block - self.whole_before[shard]) * self.b() + row)
            }
            Some(pack) => {
                let tail = pack * self.b() + row;
                let shard = holder(&self.tails_before, tail);
                // A shard's whole blocks come before its tail.
                let whole = self.whole_before[shard + 1] - self.whole_before[shard];
                (shard, whole * self.b() + tail - self.tails_before[shard])
            }
        }
    }

    /// Bytes that the index occupies on the heap.
    pub fn heap_bytes(&self) -> usize {
        (self.whole_before.capacity() + self.tails_before.capacity()) * size_of::<u64>()
    }

    fn b(&self) -> u64 {
        u64::from(self.block_rows)
    }

    fn whole(&self) -> u64 {
        self.whole_before.last().copied().unwrap_or(0)
    }

    fn tails(&self) -> u64 {
        self.tails_before.last().copied().unwrap_or(0)
    }

    fn shard_rows(&self, shard: usize) -> u64 {
        let of = |before: &[u64]| before[shard + 1] - before[shard];
        of(&self.whole_before) * self.b() + of(&self.tails_before)
    }
}

/// The shard that holds item `i`, by how many there are before each; shards without any hold none.
fn holder(before: &[u64], i: u64) -> usize {
    before.partition_point(|before| *before <= i) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tails_are_packed_in_manifest_order() {
        // Tails of 2, 3, 0, 1 and 2 rows.
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
        fn every_row_is_in_one_block(
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
                for (i, place) in rows[before..].iter().enumerate() {
                    prop_assert_eq!(index.locate(block, i as u64), *place);
                }
            }
            rows.sort_unstable();
            let all: Vec<(usize, u64)> =
                shards.iter().enumerate().flat_map(|(shard, n)| (0..*n).map(move |row| (shard, row))).collect();
            prop_assert_eq!(rows, all);
        }
    }
}
