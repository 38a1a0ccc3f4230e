//! What comes when, and who reads it, without reading anything: on random datasets, mixes and clusters, at full scale, and
//! against the statistics of ideal shuffles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail by panicking")]

mod batches;
mod scale;
mod shares;
mod shuffle;
mod world;
