//! Tests of the trainer with a tiny network and small datasets, on one rank on the CPU.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod checkpoint_writing;
mod common;
mod freezing;
mod metrics;
mod nan_and_spikes;
mod resume;
mod steps;
mod training_data;
mod validation;
