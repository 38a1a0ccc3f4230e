//! The arguments of `tidemill bench`.

use serde_json::Value;

use super::{prepare, tokenize};
use crate::error::Result;
use crate::progress::Reporter;

/// Arguments of `tidemill bench`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill bench prepare run.toml --repeat 5\n  \
    tidemill bench prepare run.toml --output /tmp/prepared --set engine.prepare.workers=1\n  \
    tidemill bench tokenize captions.txt --models models/sd2")]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Part {
    /// Source -> Prepare on all cores: rows/s, and the time of each part of a row's work.
    Prepare(prepare::Args),
    /// Captions -> token ids on one core: captions/s.
    Tokenize(tokenize::Args),
}

/// Measures one part of the work.
///
/// # Errors
/// If the input is refused, or the part fails.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    match &args.part {
        Part::Prepare(args) => prepare::run(args, reporter),
        Part::Tokenize(args) => tokenize::run(args, reporter),
    }
}
