//! Pairs of perceptual hashes within a Hamming distance d, without comparing all with all. Cut the 64 bits into m > d
//! blocks: d differing bits touch at most d of them, so the other m - d are equal. For each choice of m - d blocks the rows
//! are sorted by these blocks' bits, and only rows that agree in all of them are compared (Manku, Jain and Das Sarma,
//! "Detecting Near-Duplicates for Web Crawling", 2007).

use super::Row;

/// For each row that is within `distance` of an earlier one that stays: its index, and that of the first such row. The
/// rows are in order of preference, and their hashes differ.
pub fn duplicates(rows: &[Row], distance: u32) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let masks = masks(distance, rows.len());
    for (i, mask) in masks.iter().enumerate() {
        // A pair was found before if an earlier mask is whole in it too.
        let new = |bits: u64| masks[..i].iter().all(|earlier| bits & earlier != 0);
        agreeing(rows, *mask, |bits| bits.count_ones() <= distance && new(bits), &mut pairs);
    }
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

/// Adds the pairs (later row, earlier row) whose hashes agree in all bits of the mask and differ in bits that count.
fn agreeing(rows: &[Row], mask: u64, counts: impl Fn(u64) -> bool, pairs: &mut Vec<(usize, usize)>) {
    let mut keyed: Vec<(u64, usize)> = rows.iter().map(|row| row.phash & mask).zip(0..).collect();
    keyed.sort_unstable();
    for group in keyed.chunk_by(|a, b| a.0 == b.0) {
        for (i, (_, earlier)) in group.iter().enumerate() {
            for (_, later) in &group[i + 1..] {
                if counts(rows[*earlier].phash ^ rows[*later].phash) {
                    pairs.push((*later, *earlier));
                }
            }
        }
    }
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
    fn more_rows_take_longer_masks() {
        let bits = |rows| masks(3, rows)[0].count_ones();
        assert!(bits(1_000) < bits(100_000_000) && bits(100_000_000) <= bits(4_000_000_000));
    }
}
