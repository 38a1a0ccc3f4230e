//! CLIP (transformers' CLIPModel): images and texts to vectors that can be compared.

mod config;
mod model;
mod vision_transformer;

pub use config::{ClipConfig, ClipVisionConfig};
pub use model::ClipModel;
