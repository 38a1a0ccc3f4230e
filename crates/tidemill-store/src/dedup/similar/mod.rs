//! Similar images: finds pairs of embeddings with at least a given cosine without comparing all pairs.
//! Embeddings are assigned to cells around centroids, and compared only within a cell, as in SemDeDup
//! (Abbas et al., 2023). Each embedding is in the cells of its two nearest centroids, so few pairs at
//! the borders are missed. All of this streams: memory holds one partition of the cells at a time.
//!
//! * `embeddings`: where the embeddings come from
//! * `centroids`: k-means on a sample
//! * `partitions`: temporary files, each with some of the cells
//! * `search`: the pairs of a cell

mod centroids;
mod embeddings;
mod partitions;
mod search;

use std::path::Path;

use half::f16;
use ndarray::ArrayView2;

pub use self::embeddings::{COLUMN as EMBEDDING, DatasetEmbeddings, Embeddings};

use self::centroids::{Centroids, choose_cells};
use self::partitions::Partitions;
use crate::dedup::row::Row;
use crate::error::Result;

/// Cells that an embedding is in.
const CELLS_PER_ROW: usize = 2;

/// Embeddings that are assigned to cells at once.
const BATCH: usize = 1024;

/// How similar images are searched.
#[derive(Debug, Clone, Copy)]
pub struct SimilarSearch<'a> {
    /// The least cosine of two similar embeddings.
    pub cosine: f32,
    /// Bytes of embeddings in memory at a time.
    pub memory: u64,
    /// The folder of the temporary files.
    pub folder: &'a Path,
}

impl SimilarSearch<'_> {
    /// Finds pairs of similar rows: the index of the later one, and that of the earlier one; sorted. A
    /// row that is similar to very many earlier ones has pairs with the first of them. `rows` are in order
    /// of preference. The result does not depend on the order of the embeddings.
    ///
    /// # Errors
    /// If embeddings cannot be read, or temporary files cannot be written.
    pub fn find_pairs(&self, rows: &[Row], embeddings: &dyn Embeddings) -> Result<Vec<(usize, usize)>> {
        let ranks = Ranks::new(rows);
        let sample = centroids::draw_sample(rows.len(), self.memory, embeddings, &ranks)?;
        let centroids = Centroids::train(sample, embeddings.width(), choose_cells(rows.len()));
        let mut partitions = Partitions::create(self, rows.len(), embeddings.width(), centroids.len())?;
        let mut batch = Batch::default();
        embeddings.for_each(&mut |sample_id, values| {
            if let Some(rank) = ranks.get(sample_id) {
                batch.push(rank, values);
                if batch.ranks.len() == BATCH {
                    batch.write(&centroids, &mut partitions)?;
                }
            }
            Ok(())
        })?;
        batch.write(&centroids, &mut partitions)?;
        let mut pairs = partitions.search(self.cosine)?;
        pairs.sort_unstable();
        pairs.dedup();
        Ok(pairs)
    }
}

/// The position of each row in the order of preference, by its sample id.
struct Ranks(Vec<(u64, u32)>);

impl Ranks {
    fn new(rows: &[Row]) -> Self {
        let mut ranks: Vec<_> = rows.iter().zip(0..).map(|(row, rank)| (row.sample_id, rank)).collect();
        ranks.sort_unstable();
        Self(ranks)
    }

    fn get(&self, sample_id: u64) -> Option<u32> {
        self.0.binary_search_by_key(&sample_id, |(id, _)| *id).ok().map(|index| self.0[index].1)
    }
}

/// Embeddings on their way to their cells.
#[derive(Default)]
struct Batch {
    ranks: Vec<u32>,
    values: Vec<f16>,
}

impl Batch {
    fn push(&mut self, rank: u32, values: &[f16]) {
        self.ranks.push(rank);
        self.values.extend_from_slice(values);
    }

    /// Writes the embeddings to the partitions of their cells, and empties the batch.
    fn write(&mut self, centroids: &Centroids, partitions: &mut Partitions) -> Result<()> {
        let width = centroids.width();
        let nearest = centroids.nearest(&to_f32(&self.values), CELLS_PER_ROW);
        let embeddings = self.values.chunks_exact(width);
        for ((rank, values), cells) in self.ranks.iter().zip(embeddings).zip(nearest) {
            for cell in cells {
                partitions.push(cell, *rank, values)?;
            }
        }
        self.ranks.clear();
        self.values.clear();
        Ok(())
    }
}

fn to_f32(values: &[f16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// The dot products of each row of `a` [n, width] with each row of `b` [m, width]: [n, m].
fn dot_products(a: &[f32], b: &[f32], width: usize) -> Vec<f32> {
    let shape = |values: &[f32]| (values.len() / width, width);
    match (ArrayView2::from_shape(shape(a), a), ArrayView2::from_shape(shape(b), b)) {
        (Ok(a), Ok(b)) => a.dot(&b.t()).into_raw_vec_and_offset().0,
        // Never: both are whole rows.
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
