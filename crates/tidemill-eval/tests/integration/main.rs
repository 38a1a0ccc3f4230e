//! Features, preprocessing and metrics, compared live with torch-fidelity, pytorch-fid, clean-fid,
//! torchmetrics and transformers on random weights and images. `TIDEMILL_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod inception;
mod metrics;
mod scores;
mod statistics;
