//! Compares the shuffle with an ideal one of the same form: blocks in a random order, then the rows
//! of each window in a random order. The seeds are fixed. An ideal shuffle would exceed each bound
//! for less than one choice of seeds in a million.

use std::collections::HashMap;
use std::sync::Arc;

use tidemill_store::stream::order::blocks::BlockIndex;
use tidemill_store::stream::order::shuffle_window::{OpenWindow, ShuffleOrder};

const SEEDS: u64 = 400;

/// The rows of an epoch, window by window, each as (shard, row).
struct Epoch(Vec<Vec<(usize, u64)>>);

fn order(seed: u64, shards: &[u64], block_rows: u32, window: usize) -> ShuffleOrder {
    ShuffleOrder::new(seed, Arc::new(BlockIndex::new(shards.iter().copied(), block_rows)), window).unwrap()
}

fn windows(order: &ShuffleOrder, epoch: u64) -> impl Iterator<Item = OpenWindow> {
    let open = |position| order.open(order.window_at(position));
    let end = (epoch + 1) * order.rows();
    std::iter::successors(Some(open(epoch * order.rows())), move |last| {
        let next = last.window.rows.end;
        (next < end).then(|| open(next))
    })
}

impl Epoch {
    fn new(order: &ShuffleOrder, epoch: u64) -> Self {
        let rows = |open: OpenWindow| {
            let locate = |position| {
                let window_row = open.row(position);
                order.index().locate(open.blocks[window_row.slot as usize], window_row.row.into())
            };
            open.window.rows.clone().map(locate).collect()
        };
        Self(windows(order, epoch).map(rows).collect())
    }
}

/// 40 unequal shards with 4000 rows that fill all blocks of 16. Many are smaller than a block.
fn shards() -> Vec<u64> {
    let mut shards: Vec<u64> =
        (0..39).map(|i| if i % 3 == 0 { 3 + i % 7 } else { 60 + 37 * i % 171 }).collect();
    shards.push(4000 - shards.iter().sum::<u64>());
    shards
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sum of squared differences from the mean.
fn spread(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

/// Converts a chi-squared value to standard deviations (Wilson and Hilferty, 1931).
fn sigmas(chi2: f64, freedom: f64) -> f64 {
    ((chi2 / freedom).cbrt() - (1.0 - 2.0 / (9.0 * freedom))) / (2.0 / (9.0 * freedom)).sqrt()
}

/// Checks deviations that should be standard normal: their mean and their spread.
fn check_normal(what: &str, z: &[f64]) {
    let mean = mean(z) * (z.len() as f64).sqrt();
    let spread = sigmas(z.iter().map(|z| z * z).sum(), z.len() as f64);
    println!("{what}: mean {mean:.2}, spread {spread:.2} sigma");
    assert!(mean.abs() < 5.0 && spread.abs() < 5.0, "{what}");
}

/// Spearman's correlation between the position of a row in the epoch and in storage. For sum(i *
/// r_i), with the storage positions r of the rows, the ideal shuffle's variance has two parts:
/// blocks are assigned to windows at random, and rows are ordered at random within a window. Each
/// part is that of a sum over a random permutation, sum (a - mean a)^2 * sum (b - mean b)^2 / (n -
/// 1).
#[test]
fn order_does_not_correlate_with_storage() {
    let (shards, b) = (shards(), 16.0);
    let first_row: Vec<u64> = (0..shards.len()).map(|shard| shards[..shard].iter().sum()).collect();
    let stored = |(shard, row): (usize, u64)| (first_row[shard] + row) as f64;
    let z: Vec<f64> = (0..SEEDS)
        .map(|seed| {
            let order = order(seed, &shards, 16, 8);
            let blocks: Vec<Vec<f64>> = (0..order.index().blocks())
                .map(|block| (0..16).map(|row| stored(order.index().locate(block, row))).collect())
                .collect();
            let sums: Vec<f64> = blocks.iter().map(|rows| rows.iter().sum()).collect();
            let within_block = blocks.iter().map(|rows| spread(rows)).sum::<f64>() / blocks.len() as f64;
            let between_blocks = spread(&sums) / (b * b) / (blocks.len() - 1) as f64;
            let (mut sum, mut i, mut variance, mut means) = (0.0, 0.0, 0.0, Vec::new());
            for rows in &Epoch::new(&order, 0).0 {
                let (n, k) = (rows.len() as f64, rows.len() as f64 / b);
                means.extend(vec![i + (n - 1.0) / 2.0; k as usize]);
                for row in rows {
                    sum += i * stored(*row);
                    i += 1.0;
                }
                let within_window = k * within_block + b * (k - 1.0) * between_blocks;
                variance += n * (n * n - 1.0) / 12.0 * within_window / (n - 1.0);
            }
            variance += spread(&means) * spread(&sums) / (blocks.len() - 1) as f64;
            let expected = 4000.0 * (3999.0f64 / 2.0).powi(2);
            (sum - expected) / variance.sqrt()
        })
        .collect();
    check_normal("rank correlation with storage", &z);
}

/// Compares the number of neighbours from one shard in each window with a random order of the same
/// rows. Each such pair is one run of equal labels less. Mood (1940) gives the mean and variance of
/// the number of runs.
#[test]
fn neighbours_share_a_shard_as_often_as_by_chance() {
    let z: Vec<f64> = (0..SEEDS)
        .map(|seed| {
            let (mut off, mut variance) = (0.0, 0.0);
            for rows in Epoch::new(&order(seed, &shards(), 16, 8), 0).0 {
                let n = rows.len() as f64;
                let mut counts: HashMap<usize, f64> = HashMap::new();
                rows.iter().for_each(|(shard, _)| *counts.entry(*shard).or_default() += 1.0);
                let power = |p| counts.values().map(|count| count.powi(p)).sum::<f64>();
                let (two, three) = (power(2), power(3));
                let pairs = rows.windows(2).filter(|pair| pair[0].0 == pair[1].0).count() as f64;
                off += pairs - (two - n) / n;
                variance += (two * (two + n * (n + 1.0)) - 2.0 * n * three - n.powi(3)) / (n * n * (n - 1.0));
            }
            off / variance.sqrt()
        })
        .collect();
    check_normal("neighbours of one shard", &z);
}

/// The positions of blocks over epochs: those of one epoch do not correlate with those of the next,
/// nor with storage.
#[test]
fn epochs_do_not_correlate() {
    let order = order(7, &shards(), 16, 8);
    let n = order.index().blocks() as usize;
    let positions: Vec<Vec<f64>> = (0..SEEDS)
        .map(|epoch| {
            let mut positions = vec![0.0; n];
            let blocks = windows(&order, epoch).flat_map(|open| open.blocks);
            blocks.zip(0..).for_each(|(block, position)| positions[block as usize] = f64::from(position));
            positions
        })
        .collect();
    let stored: Vec<f64> = (0..n as u32).map(f64::from).collect();
    let z = |a: &[f64], b: &[f64]| {
        let covariance: f64 = a.iter().zip(b).map(|(a, b)| (a - mean(&stored)) * (b - mean(&stored))).sum();
        covariance / spread(&stored) * ((n - 1) as f64).sqrt()
    };
    check_normal("epochs", &positions.windows(2).map(|two| z(&two[0], &two[1])).collect::<Vec<_>>());
    check_normal(
        "blocks and storage",
        &positions.iter().map(|positions| z(positions, &stored)).collect::<Vec<_>>(),
    );
}

/// Each block comes equally often in each window, including the short block, and each row of a
/// window equally often at each of its positions.
#[test]
fn blocks_and_rows_are_uniform_over_positions() {
    const EPOCHS: u64 = 20_000;
    // 37 blocks, the last one with 3 rows, in windows of 4 or 5.
    let uneven = order(3, &[50, 7, 90], 4, 5);
    let (n, count) = (uneven.index().blocks() as usize, windows(&uneven, 0).count());
    let mut seen = vec![vec![0.0; n]; count];
    let mut sizes = vec![0.0; count];
    for open in (0..EPOCHS).flat_map(|epoch| windows(&uneven, epoch)) {
        let window = open.window.number as usize;
        sizes[window] = open.blocks.len() as f64;
        open.blocks.iter().for_each(|block| seen[window][*block as usize] += 1.0);
    }
    assert_eq!((n, count, uneven.index().gap()), (37, 8, 1));
    let chi2: f64 = seen
        .iter()
        .zip(&sizes)
        .flat_map(|(seen, size)| {
            let expected = EPOCHS as f64 * size / n as f64;
            seen.iter().map(move |seen| (seen - expected).powi(2) / expected)
        })
        .sum();
    // Each block is in one window per epoch, and each window has its number of blocks.
    let blocks = sigmas(chi2 * (n - 1) as f64 / n as f64, ((n - 1) * (count - 1)) as f64);

    let whole = order(4, &[24], 4, 6);
    let mut seen = vec![vec![0.0; 24]; 24];
    for epoch in 0..EPOCHS {
        for open in windows(&whole, epoch) {
            for position in open.window.rows.clone() {
                let window_row = open.row(position);
                seen[(position % 24) as usize][(window_row.slot * 4 + window_row.row) as usize] += 1.0;
            }
        }
    }
    let expected = EPOCHS as f64 / 24.0;
    let chi2: f64 = seen.iter().flatten().map(|seen| (seen - expected).powi(2) / expected).sum();
    let rows = sigmas(chi2 * 23.0 / 24.0, 23.0 * 23.0);
    println!("blocks in windows {blocks:.2}, rows in a window {rows:.2} sigma");
    assert!(blocks.abs() < 5.0 && rows.abs() < 5.0);
}
