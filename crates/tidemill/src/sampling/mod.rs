//! Images from prompts: the `[sample]` section, the text embedder, the image generator, and the
//! weights that a run has trained.

pub mod config;
mod image_generator;
mod text_embedder;
pub mod trained_weights;

pub use self::config::{Drawing, SampleConfig};
pub use self::image_generator::ImageGenerator;
pub use self::text_embedder::TextEmbedder;
