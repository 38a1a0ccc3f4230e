//! Studies from end to end: statistics of simulated studies, the server over HTTP, static copies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod exchange;
mod http;
mod server;
mod simulation;
mod small_study;
