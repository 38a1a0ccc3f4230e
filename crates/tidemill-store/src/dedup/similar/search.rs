//! The whole search.

use std::path::Path;

use half::f16;

use super::centroids::{Centroids, choose_cells, draw_sample};
use super::embeddings::Embeddings;
use super::partitions::{Partitions, record_bytes};
use super::products::to_f32;
use super::ranks::Ranks;
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
        let sample = draw_sample(rows.len(), self.memory, embeddings, &ranks)?;
        let centroids = Centroids::train(sample, embeddings.width(), choose_cells(rows.len()));
        let mut partitions =
            Partitions::create(self.folder, self.partition_count(rows.len(), &centroids), centroids.width())?;
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

    /// The number of partitions of which one fits into memory.
    fn partition_count(&self, rows: usize, centroids: &Centroids) -> u64 {
        let copies = CELLS_PER_ROW.min(centroids.len()) as u64;
        let bytes = rows as u64 * copies * record_bytes(centroids.width()) as u64;
        bytes.div_ceil(self.memory.max(1)).clamp(1, centroids.len() as u64)
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
