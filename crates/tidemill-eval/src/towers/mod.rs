//! The networks that turn images into features, opened from folders.

mod clip_scorer;
mod extract;
mod feature_tower;

pub(crate) use feature_tower::{normalise, open_clip};

pub use clip_scorer::ClipScorer;
pub use extract::{Extracted, Picture, extract_features};
pub use feature_tower::FeatureTower;
