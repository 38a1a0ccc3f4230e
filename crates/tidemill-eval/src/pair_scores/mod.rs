//! Scores of image-caption pairs, by which a data set is filtered: a CLIP model gives each image its
//! features once, and any number of heads turn them into scores. The caption's features give how well
//! it fits the image.

mod config;
mod scorer;

pub use config::{HeadConfig, PairScoreConfig, SIMILARITY};
pub use scorer::{PairScorer, PairScores, compute_score_digests};
