//! Helpers for the tests of several crates; never part of a release.
//!
//! `S3Server` (with the feature `s3`) is an S3 server on loopback. It checks signatures, does
//! conditional puts atomically, counts the bytes that it serves, and fails on command.
//! [`WebServer`] sends exact bytes, so that tests can imitate unusual servers. [`unshare`] gives a
//! test its own mounts, for disks that fill up. [`seed()`] is printed, so that a run can be
//! repeated. [`python`] runs scripts with the libraries that tests compare with. [`peak_kib`]
//! measures memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod mounts;
mod process;
#[cfg(feature = "s3")]
mod s3;
mod seed;
pub mod web;

pub use mounts::unshare;
pub use process::{peak_kib, python};
#[cfg(feature = "s3")]
pub use s3::{Fault, Request, S3Server};
pub use seed::seed;
pub use web::WebServer;
