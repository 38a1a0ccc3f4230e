//! `tidemill mds`: latents from and to MDS, the shards of MosaicML's `streaming`, with the columns of MosaicML diffusion's
//! `scripts/precompute_latents.py`. A verb of its own, for `export` is about the model.

use serde_json::Value;

use super::{export, import};
use crate::error::Result;
use crate::progress::Reporter;

/// Arguments of `tidemill mds`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill mds import s3://bucket/latents --to runs/sd2/dataset --models models/sd2 --scaled-by 0.18215\n  \
    tidemill mds export runs/sd2/dataset --to s3://bucket/mds --latents sample --scaled-by 0.18215"
)]
pub struct Args {
    #[command(subcommand)]
    way: Way,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Way {
    /// MDS shards -> a latent dataset. Goes on where an earlier import stopped.
    Import(import::Args),
    /// A latent dataset -> MDS shards.
    Export(export::Args),
}

/// Goes the way that is asked for.
///
/// # Errors
/// Refused input, or a failure to read or write.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    match &args.way {
        Way::Import(args) => import::run(args, reporter),
        Way::Export(args) => export::run(args, reporter),
    }
}
