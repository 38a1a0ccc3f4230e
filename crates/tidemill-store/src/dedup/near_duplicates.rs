//! Near duplicates: finds pairs of perceptual hashes within a Hamming distance d without comparing
//! all pairs. Divide the 64 bits into m > d blocks. d differing bits touch at most d blocks, so the
//! other m - d blocks are equal. For each choice of m - d blocks the rows are sorted by the bits of
//! these blocks, and only rows that agree in all of them are compared (Manku, Jain and Das Sarma,
//! "Detecting Near-Duplicates for Web Crawling", 2007).

use std::collections::HashMap;

use crate::dedup::decide::{Pair, PairSearch, find_duplicates};
use crate::dedup::row::Row;
use crate::error::Result;

/// Pairs held in memory at a time, in addition to one per row: 16 MiB.
const MAX_PAIRS: usize = 1 << 20;

/// Finds each row that is within `distance` of an earlier kept row. Returns its index and that of
/// the first such row. The rows must be in order of preference, and their hashes must differ.
pub fn find_near_duplicates(rows: &[Row], distance: u32) -> Result<Vec<Pair>> {
    find_within(rows, distance, MAX_PAIRS)
}

fn find_within(rows: &[Row], distance: u32, max_pairs: usize) -> Result<Vec<Pair>> {
    let search = Search { rows, distance, max_pairs, masks: masks(distance, rows.len()) };
    find_duplicates(&search, rows.len())
}

struct Search<'a> {
    rows: &'a [Row],
    distance: u32,
    /// Pairs held in memory at a time, in addition to one per row.
    max_pairs: usize,
    masks: Vec<u64>,
}

impl PairSearch for Search<'_> {
    fn pairs(&self, rows: &[usize]) -> Result<Option<Vec<Pair>>> {
        let mut pairs = Vec::new();
        for (i, mask) in self.masks.iter().enumerate() {
            // An earlier mask has found the pair already if the pair agrees in all bits of that
            // mask.
            let new = |bits: u64| self.masks[..i].iter().all(|earlier| bits & earlier != 0);
            for group in self.sort_by_mask(*mask, rows).chunk_by(|a, b| a.0 == b.0) {
                for (i, (_, later)) in group.iter().enumerate() {
                    let near = group[..i].iter().filter(|(_, earlier)| {
                        let bits = self.difference(*earlier, *later);
                        bits.count_ones() <= self.distance && new(bits)
                    });
                    pairs.extend(near.map(|(_, earlier)| (*later, *earlier)));
                    if pairs.len() > self.max_pairs + rows.len() {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(pairs))
    }

    fn nearest(&self, earlier: &[usize], later: &[usize]) -> Result<HashMap<usize, usize>> {
        let mut nearest = HashMap::new();
        let border = later.first().copied().unwrap_or_default();
        let rows = [earlier, later].concat();
        for mask in &self.masks {
            for group in self.sort_by_mask(*mask, &rows).chunk_by(|a, b| a.0 == b.0) {
                let (earlier, later) = group.split_at(group.partition_point(|(_, row)| *row < border));
                for (_, row) in later {
                    let near = |(_, other): &&(u64, usize)| {
                        self.difference(*other, *row).count_ones() <= self.distance
                    };
                    if let Some((_, first)) = earlier.iter().find(near) {
                        let known = nearest.entry(*row).or_insert(*first);
                        *known = (*known).min(*first);
                    }
                }
            }
        }
        Ok(nearest)
    }
}

impl Search<'_> {
    /// The rows with the mask's bits of their hashes, sorted so that rows with the same bits are
    /// adjacent, in order of preference.
    fn sort_by_mask(&self, mask: u64, rows: &[usize]) -> Vec<(u64, usize)> {
        let mut keyed: Vec<_> = rows.iter().map(|row| (self.rows[*row].phash & mask, *row)).collect();
        keyed.sort_unstable();
        keyed
    }

    fn difference(&self, one: usize, other: usize) -> u64 {
        self.rows[one].phash ^ self.rows[other].phash
    }
}

/// One mask for each choice of blocks. More blocks make more masks with more bits each: more
/// sorting and fewer comparisons. The number of rows decides which number of blocks costs least.
fn masks(distance: u32, rows: usize) -> Vec<u64> {
    let cost = |blocks: u32| {
        let (n, masks) = (rows as f64, choices(blocks, distance).count() as f64);
        let bits = 64.0 * f64::from(blocks - distance) / f64::from(blocks);
        masks * (n * n.max(2.0).log2() + n * n / 2f64.powf(bits + 1.0))
    };
    let candidates = distance + 1..=distance + 4;
    let blocks = candidates.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(distance + 1);
    let block = |i: u32| (64 * i / blocks..64 * (i + 1) / blocks).fold(0, |mask, bit| mask | 1_u64 << bit);
    let mask = |choice: u32| (0..blocks).filter(|i| choice >> i & 1 == 1).fold(0, |mask, i| mask | block(i));
    choices(blocks, distance).map(mask).collect()
}

/// All ways to choose all but `distance` of the blocks, as bit sets.
fn choices(blocks: u32, distance: u32) -> impl Iterator<Item = u32> {
    (0..1_u32 << blocks).filter(move |choice| choice.count_ones() == blocks - distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_mask_has_none_of_any_few_bits() {
        for distance in 0..=8 {
            for rows in [10, 1_000_000, 4_000_000_000] {
                let masks = masks(distance, rows);
                assert!(masks.len() <= 1000, "{} masks", masks.len());
                // Bits spread as evenly as possible, and bits in a row.
                for step in [1, 64 / distance.max(1)] {
                    let bits = (0..distance).fold(0_u64, |bits, i| bits | 1 << (i * step));
                    assert!(masks.iter().any(|mask| mask & bits == 0), "{distance} bits, {rows} rows");
                }
            }
        }
    }

    #[test]
    fn result_does_not_depend_on_pair_limit() {
        // 1,351 different rows. Each looks like dozens of others.
        let hashes = (0..1_u64 << 20).filter(|hash| hash.count_ones() <= 3);
        let row = |phash: u64| Row { sample_id: phash, sha256: phash, phash, area: 1 };
        let mut rows: Vec<Row> = hashes.map(row).collect();
        rows.sort_by_key(|row| row.phash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20));
        let sorted = |max_pairs| {
            let mut found = find_within(&rows, 2, max_pairs).unwrap();
            found.sort_unstable();
            found
        };
        let whole = sorted(usize::MAX / 2);
        assert!((500..1330).contains(&whole.len()), "{}", whole.len());
        for max_pairs in [0, 100, 10_000] {
            assert_eq!(sorted(max_pairs), whole, "{max_pairs}");
        }
    }

    #[test]
    fn masks_grow_with_rows() {
        let bits = |rows| masks(3, rows)[0].count_ones();
        assert!(bits(1_000) < bits(100_000_000) && bits(100_000_000) <= bits(4_000_000_000));
    }
}
