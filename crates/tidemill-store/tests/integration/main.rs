//! The tests of the store: datasets, streams, garbage collection, deduplication and MDS, in folders
//! and in buckets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail by panicking")]

mod dataset;
mod garbage_collection;
mod listing_and_dedup;
mod mds;
mod order;
mod other_readers;
mod row_group_cache;
mod s3_dataset;
mod s3_stream;
mod stream;
mod stream_mix;
mod support;
