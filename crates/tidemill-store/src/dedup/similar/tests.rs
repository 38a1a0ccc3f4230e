//! The search beside a comparison of all with all.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidemill_testing::seed;

use half::f16;

use super::products::{dot_products, to_f32};
use super::{Embeddings, SimilarSearch};
use crate::dedup::decide::{PairSearch, find_duplicates};
use crate::dedup::row::Row;
use crate::error::Result;

struct InMemory {
    width: usize,
    rows: Vec<(u64, Vec<f16>)>,
}

impl Embeddings for InMemory {
    fn width(&self) -> usize {
        self.width
    }

    fn for_each(&self, visit: &mut dyn FnMut(u64, &[f16]) -> Result<()>) -> Result<()> {
        self.rows.iter().try_for_each(|(sample_id, values)| visit(*sample_id, values))
    }
}

/// Numbers that look random, from -1 to 1.
fn noise(seed: u64, number: u64) -> f32 {
    let bits = twox_hash::XxHash3_64::oneshot_with_seed(seed, &number.to_le_bytes());
    (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Embeddings around `groups` directions, as those of images are; each with duplicates at random distances.
fn draw(seed: u64, rows: u64, groups: u64, width: usize) -> InMemory {
    let direction = |seed: u64, number: u64, i: usize| noise(seed, number * 1000 + i as u64);
    let embedding = |row: u64| {
        let (original, strength) =
            (row / 3 * 3, if row.is_multiple_of(3) { 0.0 } else { 0.5 * noise(seed + 9, row).abs() });
        let values: Vec<f32> = (0..width)
            .map(|i| {
                direction(seed + 1, original % groups, i)
                    + 0.7 * direction(seed + 2, original, i)
                    + strength * direction(seed + 3, row, i)
            })
            .collect();
        let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
        values.iter().map(|value| f16::from_f32(value / length)).collect()
    };
    let id = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    InMemory { width, rows: (0..rows).map(|row| (id(row), embedding(row))).collect() }
}

/// The rows, those with small ids first.
fn rows_of(embeddings: &InMemory) -> Vec<Row> {
    let row = |(sample_id, _): &(u64, Vec<f16>)| Row { sample_id: *sample_id, sha256: 0, phash: 0, area: 1 };
    let mut rows: Vec<Row> = embeddings.rows.iter().map(row).collect();
    rows.sort_by_key(|row| row.sample_id);
    rows
}

fn find(embeddings: &InMemory, cosine: f32, memory: u64) -> BTreeSet<(usize, usize)> {
    let (rows, folder) = (rows_of(embeddings), std::env::temp_dir());
    let search = SimilarSearch::new(&rows, embeddings, cosine, memory, &folder);
    let all: Vec<usize> = (0..rows.len()).collect();
    search.pairs(&all).unwrap().unwrap().into_iter().collect()
}

/// All pairs, by comparing all with all.
fn compare_all(embeddings: &InMemory, cosine: f32) -> BTreeSet<(usize, usize)> {
    let mut sorted: Vec<_> = embeddings.rows.clone();
    sorted.sort_by_key(|(id, _)| *id);
    let values: Vec<f32> = sorted.iter().flat_map(|(_, values)| to_f32(values)).collect();
    let products = dot_products(&values, &values, embeddings.width);
    let n = sorted.len();
    let pairs = (0..n).flat_map(|later| (0..later).map(move |earlier| (later, earlier)));
    pairs.filter(|(later, earlier)| products[later * n + earlier] >= cosine).collect()
}

#[test]
fn cells_find_nearly_all_pairs_and_no_others() {
    let seed = seed();
    let embeddings = draw(seed, 6000, 40, 48);
    for cosine in [0.85, 0.95] {
        let expected = compare_all(&embeddings, cosine);
        let found = find(&embeddings, cosine, 1 << 20);
        assert!(expected.len() > 500, "{} pairs", expected.len());
        assert!(found.is_subset(&expected) || found.difference(&expected).count() <= 2);
        let recall = found.intersection(&expected).count() as f64 / expected.len() as f64;
        println!("cosine {cosine}: {} pairs, recall {recall:.4}", expected.len());
        assert!(recall > 0.98, "recall {recall} at {cosine}");
    }
}

#[test]
fn few_rows_are_compared_with_all() {
    let embeddings = draw(seed(), 1200, 10, 32);
    let found = find(&embeddings, 0.9, 1 << 30);
    let expected = compare_all(&embeddings, 0.9);
    assert!(found.symmetric_difference(&expected).count() <= 2 && expected.len() > 100);
}

/// Many that look alike, and few pairs at a time: the halves are settled one after the other.
#[test]
fn remaining_rows_are_not_similar_whatever_the_pair_limit() {
    let embeddings = draw(seed(), 900, 3, 8);
    let (rows, folder) = (rows_of(&embeddings), std::env::temp_dir());
    let all = compare_all(&embeddings, 0.9);
    let decide = |max_pairs| {
        let mut search = SimilarSearch::new(&rows, &embeddings, 0.9, 1 << 30, &folder);
        search.max_pairs = max_pairs;
        let mut found = find_duplicates(&search, rows.len()).unwrap();
        found.sort_unstable();
        found
    };
    let expected = decide(usize::MAX / 2);
    for max_pairs in [0, 500, 5000] {
        assert_eq!(decide(max_pairs), expected, "{max_pairs} of {} pairs", all.len());
    }
    let removed: BTreeSet<usize> = expected.iter().map(|(row, _)| *row).collect();
    assert!(removed.len() > 300 && expected.iter().all(|(_, kept)| !removed.contains(kept)));
    assert!(!all.iter().any(|(a, b)| !removed.contains(a) && !removed.contains(b)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Neither the order in which embeddings are read nor the memory matters.
    #[test]
    fn pairs_do_not_depend_on_order_or_memory(seed in any::<u64>(), memory in 1u64..3_000_000) {
        let seed = seed >> 8;
        let mut embeddings = draw(seed, 4200, 30, 16);
        let expected = find(&embeddings, 0.9, 1 << 30);
        embeddings.rows.sort_by_key(|(id, _)| id.rotate_left(17));
        prop_assert_eq!(find(&embeddings, 0.9, memory.max(400_000)), expected);
    }
}
