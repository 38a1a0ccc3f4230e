//! k-means on a sample of the embeddings, by cosine. Everything is computed in an order that follows
//! from the rows alone, so that the same rows give the same cells.

use std::collections::BinaryHeap;

use half::f16;
use rayon::prelude::*;
use twox_hash::XxHash3_64;

use super::embeddings::Embeddings;
use super::products::dot_products;
use super::ranks::Ranks;
use crate::error::Result;

/// Below this number of rows all are compared with all.
const MIN_ROWS: usize = 4000;

/// The most cells.
const MAX_CELLS: usize = 8192;

/// Embeddings per cell that the centroids are computed from.
const SAMPLE_PER_CELL: usize = 32;

const ITERATIONS: usize = 8;

/// Embeddings whose cells are found at once.
const BATCH: usize = 256;

/// The number of cells for `rows` rows: assigning a row costs a product per cell, and searching a cell one per
/// row in it, so the square root costs least.
pub fn choose_cells(rows: usize) -> usize {
    if rows < MIN_ROWS { 1 } else { rows.isqrt().min(MAX_CELLS) }
}

/// The embeddings [n, width] that centroids are computed from: those of the rows with the least hashes of
/// their sample ids, as many as `memory` bytes hold.
pub fn draw_sample(rows: usize, memory: u64, embeddings: &dyn Embeddings, ranks: &Ranks) -> Result<Vec<f32>> {
    let cells = choose_cells(rows);
    let fitting = memory as usize / (size_of::<f32>() * embeddings.width());
    let wanted = (SAMPLE_PER_CELL * cells).min(rows).min(fitting.max(cells));
    let hash = |sample_id: u64| XxHash3_64::oneshot(&sample_id.to_le_bytes());
    // As bits, because floats have no order.
    let mut chosen: BinaryHeap<(u64, u64, Vec<u16>)> = BinaryHeap::with_capacity(wanted + 1);
    embeddings.for_each(&mut |sample_id, values| {
        let key = (hash(sample_id), sample_id);
        let is_wanted =
            chosen.len() < wanted || chosen.peek().is_some_and(|(hash, id, _)| key < (*hash, *id));
        if is_wanted && wanted > 0 && ranks.get(sample_id).is_some() {
            chosen.push((key.0, key.1, values.iter().map(|value| value.to_bits()).collect()));
            if chosen.len() > wanted {
                chosen.pop();
            }
        }
        Ok(())
    })?;
    let values = chosen.into_sorted_vec().into_iter().flat_map(|(_, _, values)| values);
    Ok(values.map(|bits| f16::from_bits(bits).to_f32()).collect())
}

/// The centres of the cells: [cells, width], of unit length.
pub struct Centroids {
    values: Vec<f32>,
    width: usize,
}

impl Centroids {
    /// Computes `cells` centroids from a sample [n, width]; fewer if the sample is smaller.
    pub fn train(sample: Vec<f32>, width: usize, cells: usize) -> Self {
        let cells = cells.min(sample.len() / width).max(1);
        let mut values = sample[..(cells * width).min(sample.len())].to_vec();
        values.resize(cells * width, 0.0);
        let mut centroids = Self { values, width };
        if cells > 1 {
            (0..ITERATIONS).for_each(|_| centroids.move_to_means(&sample));
        }
        centroids
    }

    /// The number of cells.
    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    /// Numbers in an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The nearest cells of each embedding [n, width], the nearest first.
    pub fn nearest(&self, embeddings: &[f32], count: usize) -> Vec<Vec<u32>> {
        let batches = embeddings.par_chunks(BATCH * self.width);
        batches.flat_map_iter(|batch| self.nearest_of_batch(batch, count)).collect()
    }

    fn nearest_of_batch(&self, batch: &[f32], count: usize) -> Vec<Vec<u32>> {
        let products = dot_products(batch, &self.values, self.width);
        let nearest = |cosines: &[f32]| {
            let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
            for (cosine, cell) in cosines.iter().zip(0..) {
                let position = best.partition_point(|(other, _)| other >= cosine);
                if position < count {
                    best.insert(position, (*cosine, cell));
                    best.truncate(count);
                }
            }
            best.into_iter().map(|(_, cell)| cell).collect()
        };
        products.chunks_exact(self.len()).map(nearest).collect()
    }

    /// Moves each centroid to the mean direction of the embeddings that are nearest to it.
    fn move_to_means(&mut self, sample: &[f32]) {
        let nearest = self.nearest(sample, 1);
        let mut sums = vec![0.0; self.values.len()];
        let mut counts = vec![0u32; self.len()];
        for (embedding, cells) in sample.chunks_exact(self.width).zip(&nearest) {
            let Some(cell) = cells.first().map(|cell| *cell as usize) else { continue };
            counts[cell] += 1;
            let sum = &mut sums[cell * self.width..(cell + 1) * self.width];
            sum.iter_mut().zip(embedding).for_each(|(sum, value)| *sum += value);
        }
        let centroids = self.values.chunks_exact_mut(self.width).zip(sums.chunks_exact(self.width));
        for ((centroid, sum), count) in centroids.zip(counts) {
            let length = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
            // An empty cell stays where it is.
            if count > 0 && length > 0.0 {
                centroid.iter_mut().zip(sum).for_each(|(value, sum)| *value = sum / length);
            }
        }
    }
}
