//! Import and export of MDS, the shard format of MosaicML's `streaming` (index version 2).
//! [`Folder`] and [`Shard`] read what its `MDSWriter` writes, and [`MdsWriter`] writes what its
//! `StreamingDataset` reads. [`Import`] and [`Export`] convert latents between the columns of
//! MosaicML diffusion's `scripts/precompute_latents.py` and a [`Dataset`](crate::Dataset).
//!
//! ```text
//! shard    samples u32 | offsets u32 x (samples + 1), from the shard's start | configuration, JSON | the samples
//! sample   size u32 of each column without a fixed one | the columns' values one after the other
//! ```
//!
//! All numbers are little-endian, and columns are sorted by name. A shard may be compressed as a
//! whole. `index.json` holds the columns, sizes and hashes of every shard.

mod columns;
mod export;
mod folder;
mod hash;
mod import;
mod index;
mod samples;
mod shard;
mod writer;

pub use crate::mds::writer::{MdsWriter, WriteOptions};
pub use columns::{TEXT, latent_resolutions, latents_column, time_ids_column};
pub use export::{Export, ExportSummary, LatentsKind};
pub use folder::{Folder, ShardLocation};
pub use import::{Import, is_same_text};
pub use index::{Column, FileInfo, INDEX, Index, ShardConfig, ShardInfo};
pub use shard::Shard;
