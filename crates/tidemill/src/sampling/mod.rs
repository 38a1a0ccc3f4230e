//! Images from prompts: the `[sample]` section, the generator, and the weights that a run has trained.

pub mod image_generator;
pub mod trained_weights;

pub use self::image_generator::{Generator, SampleConfig, TextEmbedder};
