//! Image-caption pairs in: where they come from, how they are read, and how they become the
//! encoders' input.
//!
//! A [`source::Source`] lists files, cuts them into units and reads record batches. [`Prepare`]
//! turns each batch into pixels and token ids, one output row per input row. This crate does not
//! depend on torch or on the dataset format.
//!
//! | folder | holds |
//! | --- | --- |
//! | [`source`] | Parquet, WebDataset, JSON lines, CSV and image folders; images fetched by URL or path |
//! | [`prepare`] | the CPU stage: crop, flip, aspect buckets, output columns |
//! | [`decode`] | JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF; EXIF orientation |
//! | [`resize`] | Pillow's resampling |
//! | [`perceptual_hash`] | the hash by which near duplicates are found |
//! | [`caption`] | choice among captions, clean-up, templates, language |
//! | [`filter`] | size, aspect, score, `where`, language, blocklists, near duplicates |
//! | [`tokenizer`] | CLIP's tokenizer and T5's |
//! | [`inspect`] | histograms and a contact sheet of a source |
//! | [`random`] | random draws that depend on seed and sample id only |

pub mod caption;
pub mod columns;
pub mod decode;
pub mod error;
pub mod filter;
pub mod inspect;
pub mod one_or_many;
pub mod perceptual_hash;
pub mod prepare;
pub mod random;
pub mod resize;
pub mod source;
pub mod tokenizer;

mod parquet_file;

pub use caption::CaptionConfig;
pub use columns::{prepared, status};
pub use error::{Error, Result, RowError};
pub use filter::{Bounds, FilterConfig};
pub use one_or_many::OneOrMany;
pub use prepare::{Digests, Prepare, PrepareConfig};
pub use source::{Columns, Format, InputFile, InputUnit, Source, SourceConfig, Span};
pub use tokenizer::{CaptionTokenizer, ClipTokenizer, T5Tokenizer};
