//! Optimizer steps and fused kernels against PyTorch and libtorch. `TIDEMILL_SEED` repeats a run.
//!
//! Tests of one process share libtorch's random generator: a test that draws numbers holds
//! `common::seed_generator`'s lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod adamw;
mod cpu_kernels;
mod emulated_gpu_kernels;
