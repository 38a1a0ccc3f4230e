//! Tests of the application from outside: the binary, and the library as the binary uses it. All
//! tests are one program, because linking libtorch takes longer than the tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail by panicking")]

mod bench;
mod common;
mod compare;
mod dedup;
mod disk_and_file_faults;
mod eval;
mod exactly_once;
mod incremental_preprocess;
mod init;
mod inspect;
mod mds;
mod memory_limit;
mod noise_pairs;
mod online;
mod plan;
mod preprocess;
mod ranks_with_s3_outage;
mod run_file;
mod s3;
mod s3_faults;
mod train;
