//! The CPU stage: record batches of encoded images and captions in, pixels and token ids out, one
//! output row per input row whatever became of it. ARCHITECTURE.md lists the output's columns.
//!
//! * `config`: the run file's section `[prepare]`
//! * `stage`: [`Prepare`], the whole stage
//! * `input`, `output`: the columns of its batches
//! * `row_selection`: which rows are kept; `row`: the outcome of one
//! * `pixels`: decode, crop, resize, flip
//! * `crop`, `aspect_buckets`: center crop, random crop, buckets, mirroring
//! * `computed_scores`: scores that a network gives kept rows later
//! * `captioner_view`: what a captioner of the user's sees
//! * `known_results`: what an earlier run found out, so that it is not computed again
//! * `extra_columns`: the columns that not every run has
//! * `image_hashes`: the columns `sha256` and `phash`
//! * `digests`: what shapes the output
//! * `timing`: where the time goes, for benchmarks

pub mod known_results;

mod aspect_buckets;
mod captioner_view;
mod computed_scores;
mod config;
mod crop;
mod digests;
mod extra_columns;
mod image_hashes;
mod input;
mod output;
mod pixels;
mod row;
mod row_selection;
mod stage;
mod timing;

pub use self::captioner_view::{KNOWN as KNOWN_CAPTION, PIXELS as CAPTION_PIXELS};
pub use self::computed_scores::{
    ComputedScore, ComputedScores, EmbeddingColumn, PIXELS as SCORE_PIXELS, ScoreView,
};
pub use self::config::{Crop, PrepareConfig};
pub use self::digests::Digests;
pub use self::known_results::EMBEDDING;
pub use self::stage::Prepare;
pub use self::timing::StepTimes;
pub use crate::resize::Resample;
