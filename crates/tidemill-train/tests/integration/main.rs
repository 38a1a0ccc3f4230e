//! Tests of the trainer on tiny networks and datasets, on one rank on the CPU.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod anomalies;
mod checkpoints;
mod common;
mod resume;
mod steps;
mod validation;
