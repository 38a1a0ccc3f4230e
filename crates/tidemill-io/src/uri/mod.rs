//! Parses what a user writes (a path, `file://`, `s3://`, with or without globs), and finds the
//! objects that it names.

mod address;
mod globs;

pub use address::{Address, parse};
