//! How good images are.
//!
//! | folder | holds |
//! | --- | --- |
//! | [`images`] | how each metric resizes and normalises images |
//! | [`towers`] | the networks that turn images and texts into features |
//! | [`pair_scores`] | scores of pairs by heads on CLIP's features, for filters |
//! | [`statistics`] | mean, covariance and a sample of the features of any number of images |
//! | [`metrics`] | FID and other Fréchet distances, KID, CMMD, precision, recall, density, coverage |
//!
//! This crate knows nothing of runs, checkpoints or storage.

mod error;
pub mod images;
pub mod metrics;
pub mod pair_scores;
pub mod statistics;
pub mod towers;

pub use error::{Error, Result};
