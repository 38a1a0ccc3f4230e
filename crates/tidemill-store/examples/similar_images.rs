//! Searches similar images among embeddings that are drawn here, for `make bench-dedup`:
//! `similar_images <rows> <width> <cosine> <queries> <seed>`. A fifth of the rows are drawn near the row
//! before them. A sample of rows is compared with all others, to see what the search misses. Prints JSON.

#![allow(clippy::expect_used, reason = "a tool for benchmarks may give up")]

use std::collections::HashSet;
use std::time::Instant;

use half::f16;
use ndarray::ArrayView2;
use rayon::prelude::*;
use tidemill_store::Result;
use tidemill_store::dedup::{DedupConfig, Embeddings, Row, SimilarConfig};
use twox_hash::XxHash3_64;

/// Directions around which embeddings lie, as those of images of one thing do.
const GROUPS: u64 = 20_000;

/// Of so many rows the last one is near the one before it.
const PERIOD: u64 = 5;

/// Rows that are drawn at once.
const BATCH: u64 = 8192;

/// Rows that are compared with a batch at once.
const QUERIES: usize = 256;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rows, width, cosine, queries, seed] = &arguments[..] else {
        eprintln!("usage: similar_images <rows> <width> <cosine> <queries> <seed>");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let cosine: f64 = cosine.parse().expect("a cosine");
    let drawn = Drawn { seed: number(seed), rows: number(rows), width: number(width) as usize };
    let area = 1;
    let all = (0..drawn.rows).map(|row| Row { sample_id: sample_id(row), sha256: row, phash: row, area });
    let config = DedupConfig { exact: false, near: None, similar: Some(SimilarConfig { cosine }) };
    let started = Instant::now();
    let found = config.find_duplicates(all.collect(), Some(&drawn)).expect("room for temporary files");
    let seconds = started.elapsed().as_secs_f64();
    let peak_mib = tidemill_testing::peak_kib(std::process::id()).unwrap_or_default() / 1024;
    let duplicates: HashSet<u64> = found.iter().map(|duplicate| duplicate.sample_id).collect();
    let Check { similar, removed, wrong } = check(&drawn, cosine as f32, number(queries), &duplicates);
    let figures = serde_json::json!({
        "duplicates": duplicates.len(), "seconds": seconds, "peak_mib": peak_mib,
        "similar": similar, "removed": removed, "wrong": wrong,
    });
    println!("{figures}");
}

/// Embeddings that follow from a seed and the row's number.
struct Drawn {
    seed: u64,
    rows: u64,
    width: usize,
}

/// Numbers that look random, from -1 to 1.
fn noise(seed: u64, number: u64) -> f32 {
    let bits = XxHash3_64::oneshot_with_seed(seed, &number.to_le_bytes());
    (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Sample ids are in no order.
fn sample_id(row: u64) -> u64 {
    row.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Drawn {
    fn embedding(&self, row: u64) -> Vec<f16> {
        let is_near = row % PERIOD == PERIOD - 1;
        let original = if is_near { row - 1 } else { row };
        let group = XxHash3_64::oneshot_with_seed(self.seed, &original.to_le_bytes()) % GROUPS;
        let strength = if is_near { 0.6 * noise(self.seed + 4, row).abs() } else { 0.0 };
        let at = |number: u64, i: usize| number * self.width as u64 + i as u64;
        let value = |i: usize| {
            let own = noise(self.seed + 1, at(group, i)) + 0.8 * noise(self.seed + 2, at(original, i));
            if is_near { own + strength * noise(self.seed + 3, at(row, i)) } else { own }
        };
        let values: Vec<f32> = (0..self.width).map(value).collect();
        let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
        values.iter().map(|value| f16::from_f32(value / length)).collect()
    }

    fn batch(&self, first: u64) -> Vec<Vec<f16>> {
        let rows = first..self.rows.min(first + BATCH);
        rows.into_par_iter().map(|row| self.embedding(row)).collect()
    }
}

impl Embeddings for Drawn {
    fn width(&self) -> usize {
        self.width
    }

    fn for_each(&self, visit: &mut dyn FnMut(u64, &[f16]) -> Result<()>) -> Result<()> {
        for first in (0..self.rows).step_by(BATCH as usize) {
            for (row, values) in (first..).zip(self.batch(first)) {
                visit(sample_id(row), &values)?;
            }
        }
        Ok(())
    }
}

/// What a comparison of some rows with all others shows.
#[derive(Default)]
struct Check {
    /// Rows that are similar to a preferred row that stays.
    similar: u64,
    /// Those of them that were removed.
    removed: u64,
    /// Removed rows that are similar to no row that stays.
    wrong: u64,
}

/// Compares `queries` rows, evenly spread, with all rows.
fn check(drawn: &Drawn, cosine: f32, queries: u64, duplicates: &HashSet<u64>) -> Check {
    // A stride that is prime to the period, so that all kinds of rows are among them.
    let stride = (drawn.rows / queries).max(1) | 1;
    let stride = if stride.is_multiple_of(PERIOD) { stride + 2 } else { stride };
    let chosen: Vec<u64> = (0..drawn.rows).step_by(stride as usize).collect();
    let values = to_f32(chosen.iter().map(|row| drawn.embedding(*row)));
    let mut has_similar = vec![false; chosen.len()];
    for first in (0..drawn.rows).step_by(BATCH as usize) {
        let batch = to_f32(drawn.batch(first).into_iter());
        let queries = values.par_chunks(QUERIES * drawn.width).zip(chosen.par_chunks(QUERIES));
        has_similar.par_chunks_mut(QUERIES).zip(queries).for_each(|(found, (values, rows))| {
            let products = matrix(values, drawn.width).dot(&matrix(&batch, drawn.width).t());
            for ((i, other), product) in products.indexed_iter() {
                let other = sample_id(first + other as u64);
                if *product >= cosine && other < sample_id(rows[i]) && !duplicates.contains(&other) {
                    found[i] = true;
                }
            }
        });
    }
    let mut check = Check::default();
    for (row, has_similar) in chosen.iter().zip(has_similar) {
        let is_removed = duplicates.contains(&sample_id(*row));
        check.similar += u64::from(has_similar);
        check.removed += u64::from(has_similar && is_removed);
        check.wrong += u64::from(!has_similar && is_removed);
    }
    check
}

fn to_f32(embeddings: impl Iterator<Item = Vec<f16>>) -> Vec<f32> {
    embeddings.flatten().map(f16::to_f32).collect()
}

/// Rows of embeddings as a matrix [n, width].
fn matrix(values: &[f32], width: usize) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((values.len() / width, width), values).expect("whole rows")
}
