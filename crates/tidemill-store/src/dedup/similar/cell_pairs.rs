//! The pairs of similar embeddings within cells.

use half::f16;
use rayon::prelude::*;

use super::products::dot_products;

/// Ranks and embeddings (f16, little-endian), in order of the ranks.
pub type Cell<'a> = Vec<(u32, &'a [u8])>;

/// Embeddings whose products are computed at once.
const BLOCK: usize = 256;

/// A row has at most as many pairs in a cell. More would only repeat that it has something like it.
const MAX_PAIRS_PER_ROW: usize = 16;

/// The pairs (later rank, earlier rank) of all cells, which are searched in parallel.
pub fn search_cells(cells: &[Cell], width: usize, cosine: f32) -> Vec<(usize, usize)> {
    cells.par_iter().flat_map_iter(|cell| search_cell(cell, width, cosine)).collect()
}

fn search_cell(cell: &Cell, width: usize, cosine: f32) -> Vec<(usize, usize)> {
    let value = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32();
    let values: Vec<f32> = cell.iter().flat_map(|(_, bytes)| bytes.as_chunks().0).map(value).collect();
    let mut pairs = Vec::new();
    for first in (0..cell.len()).step_by(BLOCK) {
        let end = (first + BLOCK).min(cell.len());
        // Pairs of each row of the block, across the blocks of earlier rows.
        let mut counts = [0; BLOCK];
        for earlier in (0..end).step_by(BLOCK) {
            let earlier_end = (earlier + BLOCK).min(end);
            let (a, b) = (&values[first * width..end * width], &values[earlier * width..earlier_end * width]);
            let products = dot_products(a, b, width);
            for (row, products) in products.chunks_exact(earlier_end - earlier).enumerate() {
                for (other, product) in products.iter().enumerate() {
                    let is_earlier = earlier + other < first + row;
                    if *product >= cosine && is_earlier && counts[row] < MAX_PAIRS_PER_ROW {
                        counts[row] += 1;
                        pairs.push((cell[first + row].0 as usize, cell[earlier + other].0 as usize));
                    }
                }
            }
        }
    }
    pairs
}
