//! What the tests of several crates share: [`S3Server`], a real S3 server on loopback that checks signatures, puts
//! conditionally in one atomic step, counts what it serves and fails on command; [`WebServer`], which answers as oddly as
//! the web does; and [`unshare`], for disks that fill up. Never part of what is shipped.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod mounts;
mod objects;
mod server;
pub mod web;

pub use mounts::unshare;
pub use server::{Fault, Request, S3Server};
pub use web::WebServer;
