//! An S3 server on loopback that fails on command. It speaks Google's XML API, too.

mod google;
mod object_map;
mod server;

pub use server::{Fault, Request, S3Server};
