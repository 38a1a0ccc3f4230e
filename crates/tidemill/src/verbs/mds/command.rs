//! The arguments of `tidemill mds`.

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
    direction: Direction,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Direction {
    /// MDS shards -> a latent dataset. Continues where an earlier import stopped.
    Import(import::Args),
    /// A latent dataset -> MDS shards.
    Export(export::Args),
}

/// Imports or exports.
///
/// # Errors
/// If the input is refused, or reading or writing fails.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    match &args.direction {
        Direction::Import(args) => import::run(args, reporter),
        Direction::Export(args) => export::run(args, reporter),
    }
}
