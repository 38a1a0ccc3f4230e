//! The pairs of similar embeddings within cells.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;
use rayon::prelude::*;

use super::products::dot_products;
use crate::dedup::decide::Pair;

/// Rows, in ascending order, and their embeddings (f16, little-endian).
pub type Cell<'a> = Vec<(u32, &'a [u8])>;

/// Embeddings whose products are computed at once.
const BLOCK: usize = 256;

/// Which pairs are looked for.
#[derive(Debug, Clone, Copy)]
pub enum Wanted {
    /// All, unless there are more than so many.
    All { max: usize },
    /// Of each row from `border` on, the one with the first row before it.
    Across { border: u32 },
}

/// Finds pairs in cells.
pub struct CellSearch {
    pub width: usize,
    pub cosine: f32,
    pub wanted: Wanted,
    /// Pairs that were found so far.
    pub found: AtomicUsize,
}

impl CellSearch {
    /// The pairs (later row, earlier row) of all cells, which are searched in parallel. Not all of them if
    /// there are [too many](Self::has_too_many).
    pub fn search(&self, cells: &[Cell]) -> Vec<Pair> {
        cells.par_iter().flat_map_iter(|cell| self.search_cell(cell)).collect()
    }

    /// True if more pairs were found than wanted.
    pub fn has_too_many(&self) -> bool {
        matches!(self.wanted, Wanted::All { max } if self.found.load(Ordering::Relaxed) > max)
    }

    fn search_cell(&self, cell: &Cell) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for later in cell.chunks(BLOCK) {
            let values = read_values(later);
            let before = pairs.len();
            // Rows of this block that have their pair.
            let mut is_done = [false; BLOCK];
            for earlier in cell.chunks(BLOCK) {
                if self.has_too_many() || !self.is_wanted(later[later.len() - 1].0, earlier[0].0) {
                    break;
                }
                let products = dot_products(&values, &read_values(earlier), self.width);
                for (i, products) in products.chunks_exact(earlier.len()).enumerate() {
                    let similar =
                        earlier.iter().zip(products).filter(|(_, product)| **product >= self.cosine);
                    for ((other, _), _) in
                        similar.filter(|((other, _), _)| self.is_wanted(later[i].0, *other))
                    {
                        if !is_done[i] {
                            pairs.push((later[i].0 as usize, *other as usize));
                        }
                        is_done[i] = matches!(self.wanted, Wanted::Across { .. });
                    }
                }
            }
            self.found.fetch_add(pairs.len() - before, Ordering::Relaxed);
        }
        pairs
    }

    fn is_wanted(&self, later: u32, earlier: u32) -> bool {
        match self.wanted {
            Wanted::All { .. } => earlier < later,
            Wanted::Across { border } => earlier < border && border <= later,
        }
    }
}

fn read_values(rows: &[(u32, &[u8])]) -> Vec<f32> {
    let value = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32();
    rows.iter().flat_map(|(_, bytes)| bytes.as_chunks().0).map(value).collect()
}
