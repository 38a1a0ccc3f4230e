//! The application from outside: the binary, and the library as the binary uses it. One test program, for linking
//! libtorch takes longer than the tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail by panicking")]

mod bench;
mod common;
mod dedup;
mod exactly_once;
mod faults;
mod incremental;
mod inspect;
mod mds;
mod memory;
mod online;
mod pairs;
mod preprocess;
mod run_file;
mod s3;
mod s3_faults;
mod train;
mod workers;
