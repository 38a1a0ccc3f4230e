//! The CLIP text encoder: token ids to text embeddings; and the list of those that a model folder has.

mod config;
mod model;
mod text_encoders;
mod text_join;
mod transformer;

pub use config::ClipTextConfig;
pub(crate) use config::DEFAULT_PROJECTION_DIM;
pub use model::{ClipTextModel, ClipTextOutput};
pub use text_encoders::{TextEncoders, TextStates, TextWidths};
pub use text_join::TextJoin;
pub(crate) use transformer::TextTransformer;
