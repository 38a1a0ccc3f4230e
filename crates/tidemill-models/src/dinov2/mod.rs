//! DINOv2 (Oquab et al., 2023; transformers' Dinov2Model): images to features.

mod config;
mod layer;
mod model;

pub use config::Dinov2Config;
pub use model::Dinov2Model;
