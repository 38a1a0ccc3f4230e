//! The latent dataset and the training stream. A [`Writer`] writes units of encoded rows as Parquet and
//! commits each exactly once; a [`Dataset`] is what a manifest snapshot says was committed; a
//! [`stream::Stream`] deals its rows out in an order that is a pure function of seed, epoch and snapshot.
//! Nothing here knows of torch.

pub mod commit;
pub mod counts;
pub mod dataset;
pub mod dedup;
pub mod error;
pub mod float8;
pub mod gc;
pub mod index;
pub mod layout;
pub mod listing;
pub mod manifest;
pub mod mds;
pub mod spec;
pub mod stream;
pub mod verify;
pub mod writer;

mod block;
mod bucket;
mod buffer;
mod cache;
mod rounding;
mod rows;
mod shard;
mod shards;
mod tensor;
mod units;

pub use bucket::Bucket;
pub use cache::Cache;
pub use commit::{Commit, Digests, UnitId, UnitKey};
pub use counts::Counts;
pub use dataset::{Dataset, Tensors, Totals};
pub use error::{Error, Result};
pub use gc::{Garbage, Gc};
pub use layout::{Group, Split};
pub use manifest::Manifest;
pub use rounding::Rounding;
pub use rows::RowBatches;
pub use spec::{DatasetSpec, Dtype, ModelDigests, TensorSpec};
pub use tidemill_io::{Checksum, Location};
pub use verify::Verification;
pub use writer::{Known, Outcome, UnitWriter, Writer};
