//! Distances between the features of generated and of reference images.

mod frechet;
mod kernel_distance;
mod neighbours;

pub use frechet::FrechetReference;
pub use kernel_distance::{KernelDistance, cmmd, kid};
pub use neighbours::{NeighbourScores, neighbour_scores};
