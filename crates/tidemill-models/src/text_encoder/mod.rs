//! The CLIP text encoder: token ids to text embeddings.

mod config;
mod model;
mod transformer;

pub use config::ClipTextConfig;
pub use model::ClipTextModel;
pub(crate) use transformer::TextTransformer;
