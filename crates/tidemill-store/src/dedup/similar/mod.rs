//! Similar images: finds pairs of embeddings with at least a given cosine without comparing all pairs.
//! Embeddings are assigned to cells around centroids, and compared only within a cell, as in SemDeDup
//! (Abbas et al., 2023). Each embedding is in the cells of its three nearest centroids, so few pairs
//! at the borders are missed. All of this streams: memory holds one partition of the cells at a time.
//!
//! * `embeddings`: where the embeddings come from
//! * `centroids`: k-means on a sample
//! * `partitions`: temporary files, each with some of the cells
//! * `cell_pairs`: the pairs of a cell
//! * `search`: all of it
//! * `products`, `ranks`: what these share

mod cell_pairs;
mod centroids;
mod embeddings;
mod partitions;
mod products;
mod ranks;
mod search;

#[cfg(test)]
mod tests;

pub use self::embeddings::{DatasetEmbeddings, Embeddings};
pub use self::search::SimilarSearch;
