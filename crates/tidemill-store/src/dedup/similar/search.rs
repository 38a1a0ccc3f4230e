//! The whole search.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use half::f16;

use super::cell_pairs::{CellSearch, Wanted};
use super::centroids::{Centroids, choose_cells, draw_sample};
use super::embeddings::Embeddings;
use super::partitions::{Partitions, record_bytes};
use super::products::to_f32;
use super::ranks::Ranks;
use crate::dedup::decide::{Pair, PairSearch};
use crate::dedup::row::Row;
use crate::error::Result;

/// Cells that an embedding is in. Where the groups are many more than the cells, two found 97 % of the pairs from
/// a cosine of 0.95 on, three 99.7 %, four 99.95 %. The products grow with the square.
const CELLS_PER_ROW: usize = 3;

/// Embeddings that are assigned to cells at once.
const BATCH: usize = 1024;

/// Pairs held in memory at a time, in addition to one per row: 16 MiB.
const MAX_PAIRS: usize = 1 << 20;

/// Searches rows with similar embeddings. The result does not depend on the order of the embeddings.
pub struct SimilarSearch<'a> {
    rows: &'a [Row],
    embeddings: &'a dyn Embeddings,
    /// The least cosine of two similar embeddings.
    cosine: f32,
    /// Bytes of embeddings in memory at a time.
    memory: u64,
    /// The folder of the temporary files.
    folder: &'a Path,
    /// Pairs held in memory at a time, in addition to one per row.
    pub(super) max_pairs: usize,
}

impl PairSearch for SimilarSearch<'_> {
    fn pairs(&self, rows: &[usize]) -> Result<Option<Vec<Pair>>> {
        let wanted = Wanted::All { max: self.max_pairs + rows.len() };
        let Some(mut pairs) = self.search(rows, wanted)? else { return Ok(None) };
        // Two rows can share two cells.
        pairs.sort_unstable();
        pairs.dedup();
        Ok(Some(pairs))
    }

    fn nearest(&self, earlier: &[usize], later: &[usize]) -> Result<HashMap<usize, usize>> {
        let border = later.first().copied().unwrap_or_default() as u32;
        let pairs = self.search(&[earlier, later].concat(), Wanted::Across { border })?.unwrap_or_default();
        let mut nearest = HashMap::new();
        for (row, first) in pairs {
            let known = nearest.entry(row).or_insert(first);
            *known = (*known).min(first);
        }
        Ok(nearest)
    }
}

impl<'a> SimilarSearch<'a> {
    /// A search among rows in order of preference, that has so many bytes of embeddings in memory and the
    /// others in a folder.
    pub fn new(
        rows: &'a [Row],
        embeddings: &'a dyn Embeddings,
        cosine: f32,
        memory: u64,
        folder: &'a Path,
    ) -> Self {
        Self { rows, embeddings, cosine, memory, folder, max_pairs: MAX_PAIRS }
    }

    /// The pairs among these rows; `None` if there are too many.
    fn search(&self, rows: &[usize], wanted: Wanted) -> Result<Option<Vec<Pair>>> {
        let (embeddings, ranks) = (self.embeddings, Ranks::new(self.rows, rows));
        let sample = draw_sample(rows.len(), self.memory, embeddings, &ranks)?;
        let centroids = Centroids::train(sample, embeddings.width(), choose_cells(rows.len()));
        let count = self.partition_count(rows.len(), &centroids);
        let mut partitions = Partitions::create(self.folder, count, centroids.width())?;
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
        let (width, cosine) = (embeddings.width(), self.cosine);
        partitions.search(&CellSearch { width, cosine, wanted, found: AtomicUsize::new(0) })
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
