//! All tests of the public interface, as one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod caption;
mod color;
mod columnar_files;
mod config;
mod contact_sheet;
mod container_parsers;
mod containers;
mod crops;
mod filters;
mod fuzz_corpus;
mod hostile_images;
mod jpeg_columns;
mod known_results;
mod layouts;
mod oddities;
mod parity;
mod parquet_source;
mod prepare;
mod s3;
mod support;
mod tokenizer;
