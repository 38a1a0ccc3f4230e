//! Tests of the synthetic scenes: the checker, and the Parquet dataset.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checker;
mod dataset;
