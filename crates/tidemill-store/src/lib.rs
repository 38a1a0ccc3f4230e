//! The latent dataset and the training stream. A [`DatasetWriter`] writes units of encoded rows as
//! Parquet and commits each unit exactly once. A [`Dataset`] is what a manifest snapshot lists as
//! committed. A [`stream::Stream`] gives its rows as batches, in an order that is a pure function
//! of seed, epoch and snapshot. This crate does not depend on torch.

pub mod dataset;
pub mod dedup;
pub mod error;
pub mod float8;
pub mod mds;
pub mod shard;
pub mod stream;
pub mod writer;

mod bucket;

pub use bucket::Bucket;
pub use dataset::column_group::ColumnGroup;
pub use dataset::commit::Commit;
pub use dataset::garbage_collection::{Garbage, GarbageCollector};
pub use dataset::manifest::Manifest;
pub use dataset::reader::{Dataset, Totals};
pub use dataset::row_counts::RowCounts;
pub use dataset::rows::RowBatches;
pub use dataset::spec::{DatasetSpec, Dtype, ModelDigests, TensorSpec, TextEncoderDigests};
pub use dataset::split::Split;
pub use dataset::text_column::TextColumn;
pub use dataset::unit::{Digests, UnitId, UnitKey};
pub use dataset::verify::Verification;
pub use error::{Error, Result};
pub use shard::first_rows::Tensors;
pub use shard::rounding_error::RoundingError;
pub use shard::row_group_cache::Cache;
pub use tidemill_io::{Checksum, Location};
pub use writer::{CommitOutcome, DatasetWriter, ReusableRows, UnitWriter, attempt_name};
