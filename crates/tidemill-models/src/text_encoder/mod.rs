//! The CLIP text encoder: token ids to text embeddings.

mod config;
mod model;

pub use config::ClipTextConfig;
pub use model::ClipTextModel;
