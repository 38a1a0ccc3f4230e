//! From the caption columns of a batch to one caption per row: choose among the candidates, clean,
//! fill a template. The caption filters and the tokenizer get the result.
//!
//! * `config`: the run file's section `[caption]`
//! * `stage`: the whole way, for a batch
//! * `choice`: which of several captions a row gets
//! * `clean`: open_clip's clean-up (ftfy)
//! * `template`: `a photo of {caption}, by {artist}`
//! * `language`: language detection, for the filter

pub mod clean;
pub mod config;
pub mod language;

pub(crate) mod stage;

mod choice;
mod template;

pub use config::CaptionConfig;
