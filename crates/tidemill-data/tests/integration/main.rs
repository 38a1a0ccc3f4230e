//! All tests of the public interface, as one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod caption;
mod config;
mod containers;
mod corpora;
mod crops;
mod filters;
mod hostile_images;
mod inspect;
mod known;
mod oddities;
mod parity;
mod parsers;
mod prepare;
mod s3;
mod source;
mod strips;
mod support;
mod tokenizer;
