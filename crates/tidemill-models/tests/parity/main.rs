//! Parity with the installed diffusers and transformers. One Python process (`make_cases.py`) draws
//! configurations, weights and inputs from a seed and leaves them, with the libraries' results, in a
//! temporary folder; the tests load the same folders and compare. `TIDEMILL_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod compare;
mod exports;
mod networks;
mod samplers;
mod schedules;
mod training;
mod variants;
