//! What the tests of several crates share: `S3Server`, a real S3 server on loopback that checks signatures, puts
//! conditionally in one atomic step, counts what it serves and fails on command (with the feature `s3`); [`WebServer`],
//! which answers as oddly as the web does; [`unshare`], for disks that fill up; [`seed()`], which is printed; [`python`], for
//! scripts of the libraries that we compare with; and [`peak_kib`]. Never part of what is shipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod mounts;
#[cfg(feature = "s3")]
mod objects;
mod process;
mod seed;
#[cfg(feature = "s3")]
mod server;
pub mod web;

pub use mounts::unshare;
pub use process::{peak_kib, python};
pub use seed::seed;
#[cfg(feature = "s3")]
pub use server::{Fault, Request, S3Server};
pub use web::WebServer;
