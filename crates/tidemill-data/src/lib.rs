//! Image-caption pairs in: where they come from, how they are read, and how they become what the encoders take.
//!
//! A [`source::Source`] lists files, cuts them into units and reads record batches; [`Prepare`] turns each batch
//! into pixels and token ids, one output row per input row. Nothing here knows of torch or of the latent dataset.

pub mod caption;
pub mod config;
pub mod decode;
pub mod draw;
pub mod error;
pub mod filter;
pub mod inspect;
pub mod phash;
pub mod prepare;
pub mod prepared;
pub mod resize;
pub mod source;
pub mod status;
pub mod tokenizer;

mod columns;

pub use caption::config::CaptionConfig;
pub use config::{FilterConfig, SourceConfig};
pub use error::{Error, Result, RowError};
pub use prepare::{Digests, Prepare, PrepareConfig};
pub use source::{InputFile, InputUnit, Source, Span};
pub use tokenizer::ClipTokenizer;
