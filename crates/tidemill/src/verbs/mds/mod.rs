//! `tidemill mds`: imports latents from MDS, the shards of MosaicML Streaming, and exports a
//! dataset to MDS. The columns are those of MosaicML diffusion's `scripts/precompute_latents.py`.
//! This is a verb of its own because `tidemill export` is about the model.

mod command;
mod export;
mod import;

pub use self::command::{Args, run};
