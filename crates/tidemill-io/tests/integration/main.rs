//! Tests of the I/O crate against servers on loopback.
//!
//! The tests share one process and its table of connections, so each test uses buckets of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod azure;
mod credentials;
mod google;
mod http_download;
mod objects;
mod retries;
mod support;
