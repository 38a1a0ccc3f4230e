//! open_clip's clean-up of captions, in pure Rust: a port of ftfy 6.3 (Apache-2.0, Robyn Speer) and
//! `html.unescape`.

mod basic_clean;
mod charmaps;
mod html_entities;
mod mojibake;
mod mojibake_detection;

pub use basic_clean::open_clip;
