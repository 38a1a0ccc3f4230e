//! Pairs of perceptual hashes within a Hamming distance d, without comparing all with all. Cut the 64 bits into m > d
//! blocks: d differing bits touch at most d of them, so the other m - d are equal. For each choice of m - d blocks the rows
//! are sorted by these blocks' bits, and only rows that agree in all of them are compared (Manku, Jain and Das Sarma,
//! "Detecting Near-Duplicates for Web Crawling", 2007).

use std::collections::HashMap;

use crate::dedup::row::Row;

/// Pairs that are held at a time, beside one per row: 16 MiB.
const MOST_PAIRS: usize = 1 << 20;

/// For each row that is within `distance` of an earlier one that stays: its index, and that of the first such row. The
/// rows are in order of preference, and their hashes differ.
pub fn duplicates(rows: &[Row], distance: u32) -> Vec<(usize, usize)> {
    within(rows, distance, MOST_PAIRS)
}

fn within(rows: &[Row], distance: u32, most_pairs: usize) -> Vec<(usize, usize)> {
    let masks = masks(distance, rows.len());
    let mut search = Search { rows, distance, most_pairs, masks, left_out: Vec::new() };
    search.settle((0..rows.len()).collect());
    search.left_out
}

struct Search<'a> {
    rows: &'a [Row],
    distance: u32,
    /// Beside one per row.
    most_pairs: usize,
    masks: Vec<u64>,
    /// What is found so far: row, and the one that stays.
    left_out: Vec<(usize, usize)>,
}

impl Search<'_> {
    /// Decides on rows that are near none of those that stay so far, and gives those of them that stay. If they make more pairs
    /// than can be held, the first half is settled alone, and what is near its rows is out before the second half is looked at:
    /// many rows that all look the same are soon only one.
    fn settle(&mut self, mut undecided: Vec<usize>) -> Vec<usize> {
        if let Some(pairs) = self.pairs(&undecided) {
            let left_out = by_preference(pairs);
            undecided.retain(|row| left_out.binary_search_by_key(row, |(row, _)| *row).is_err());
            self.left_out.extend(left_out);
            return undecided;
        }
        let mut second = undecided.split_off(undecided.len() / 2);
        let mut kept = self.settle(undecided);
        let near = self.nearest(&kept, &second);
        second.retain(|row| !near.contains_key(row));
        self.left_out.extend(near);
        kept.extend(self.settle(second));
        kept
    }

    /// The pairs (later row, earlier row) that are near each other, unless they are too many.
    fn pairs(&self, rows: &[usize]) -> Option<Vec<(usize, usize)>> {
        let mut pairs = Vec::new();
        for (i, mask) in self.masks.iter().enumerate() {
            // A pair was found before if an earlier mask is whole in it too.
            let new = |bits: u64| self.masks[..i].iter().all(|earlier| bits & earlier != 0);
            for group in self.sorted(*mask, rows).chunk_by(|a, b| a.0 == b.0) {
                for (i, (_, later)) in group.iter().enumerate() {
                    let near = group[..i].iter().filter(|(_, earlier)| {
                        let bits = self.difference(*earlier, *later);
                        bits.count_ones() <= self.distance && new(bits)
                    });
                    pairs.extend(near.map(|(_, earlier)| (*later, *earlier)));
                    if pairs.len() > self.most_pairs + rows.len() {
                        return None;
                    }
                }
            }
        }
        Some(pairs)
    }

    /// For each of the later rows that is near an earlier one the first such.
    fn nearest(&self, earlier: &[usize], later: &[usize]) -> HashMap<usize, usize> {
        let mut nearest = HashMap::new();
        let border = later.first().copied().unwrap_or_default();
        let rows = [earlier, later].concat();
        for mask in &self.masks {
            for group in self.sorted(*mask, &rows).chunk_by(|a, b| a.0 == b.0) {
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
        nearest
    }

    /// The rows with the mask's bits of their hashes, those with the same bits side by side in order of preference.
    fn sorted(&self, mask: u64, rows: &[usize]) -> Vec<(u64, usize)> {
        let mut keyed: Vec<_> = rows.iter().map(|row| (self.rows[*row].phash & mask, *row)).collect();
        keyed.sort_unstable();
        keyed
    }

    fn difference(&self, one: usize, other: usize) -> u64 {
        self.rows[one].phash ^ self.rows[other].phash
    }
}

/// Of pairs (later row, earlier row) the rows that are left out, in ascending order, each with the first one that stays.
fn by_preference(mut pairs: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    pairs.sort_unstable();
    let mut left_out: Vec<(usize, usize)> = Vec::new();
    // Pairs come by their later row, and then by the earlier one, about which all is known by then.
    for (later, earlier) in pairs {
        let decided = left_out.last().is_some_and(|(row, _)| *row == later);
        if !decided && left_out.binary_search_by_key(&earlier, |(row, _)| *row).is_err() {
            left_out.push((later, earlier));
        }
    }
    left_out
}

/// One mask for each choice of blocks. More blocks make more masks of more bits: sorting costs more and comparing less,
/// and the number of rows decides which number of blocks costs least.
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

/// All ways to choose all but `distance` of the blocks, as sets of bits.
fn choices(blocks: u32, distance: u32) -> impl Iterator<Item = u32> {
    (0..1_u32 << blocks).filter(move |choice| choice.count_ones() == blocks - distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_few_bits_leave_one_mask_whole() {
        for distance in 0..=8 {
            for rows in [10, 1_000_000, 4_000_000_000] {
                let masks = masks(distance, rows);
                assert!(masks.len() <= 1000, "{} masks", masks.len());
                // Bits spread as evenly as can be, and all in a row.
                for step in [1, 64 / distance.max(1)] {
                    let bits = (0..distance).fold(0_u64, |bits, i| bits | 1 << (i * step));
                    assert!(masks.iter().any(|mask| mask & bits == 0), "{distance} bits, {rows} rows");
                }
            }
        }
    }

    #[test]
    fn holding_few_pairs_changes_nothing() {
        // 1,351 rows of which each looks like dozens of others, and no two the same.
        let hashes = (0..1_u64 << 20).filter(|hash| hash.count_ones() <= 3);
        let row = |phash: u64| Row { sample_id: phash, sha256: phash, phash, area: 1 };
        let mut rows: Vec<Row> = hashes.map(row).collect();
        rows.sort_by_key(|row| row.phash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20));
        let sorted = |most_pairs| {
            let mut found = within(&rows, 2, most_pairs);
            found.sort_unstable();
            found
        };
        let whole = sorted(usize::MAX / 2);
        assert!((500..1330).contains(&whole.len()), "{}", whole.len());
        for most_pairs in [0, 100, 10_000] {
            assert_eq!(sorted(most_pairs), whole, "{most_pairs}");
        }
    }

    #[test]
    fn more_rows_take_longer_masks() {
        let bits = |rows| masks(3, rows)[0].count_ones();
        assert!(bits(1_000) < bits(100_000_000) && bits(100_000_000) <= bits(4_000_000_000));
    }
}
