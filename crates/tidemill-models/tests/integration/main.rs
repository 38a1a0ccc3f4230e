//! Model folders, invalid models, and parity with diffusers and transformers. `TIDEMILL_SEED`
//! repeats a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod invalid_models;
mod model_folder;
mod parity;
mod shard_units;
