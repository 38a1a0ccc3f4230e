//! Text encoders: CLIP's and T5's, and the list of those that a model folder has.

mod config;
mod model;
mod t5_config;
mod t5_model;
mod text_encoders;
mod text_join;
mod transformer;

pub use config::ClipTextConfig;
pub(crate) use config::DEFAULT_PROJECTION_DIM;
pub use model::{ClipTextModel, ClipTextOutput};
pub use t5_config::{FeedForwardProj, T5Config};
pub use t5_model::T5EncoderModel;
pub use text_encoders::{TextEncoders, TextStates, TextWidths};
pub use text_join::TextJoin;
pub(crate) use transformer::TextTransformer;
