//! An S3 server on loopback that fails on command.

mod object_map;
mod server;

pub use server::{Fault, Request, S3Server};
