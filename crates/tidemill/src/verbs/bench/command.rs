//! The arguments of `tidemill bench`.

use serde_json::Value;

use super::{encode, prepare, tokenize, train};
use crate::error::Result;
use crate::progress::Reporter;

/// Arguments of `tidemill bench`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill bench prepare run.toml --repeat 5\n  \
    tidemill bench prepare run.toml --output /tmp/prepared --set engine.prepare.workers=1\n  \
    tidemill bench train run.toml --gpu H100-80G --output rates.toml\n  \
    tidemill bench encode run.toml --gpu H100-80G --output rates.toml\n  \
    tidemill bench tokenize captions.txt --models models/sd2")]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Part {
    /// Source -> Prepare on all cores: rows/s, and the time of each part of a row's work.
    Prepare(prepare::Args),
    /// Pairs that one core prepares and one device encodes: pairs/s by resolution.
    Encode(encode::Args),
    /// Steps of the trainer on latents drawn at random, in this process: images/s by resolution.
    Train(train::Args),
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
        Part::Encode(args) => encode::run(args, reporter),
        Part::Train(args) => train::run(args, reporter),
        Part::Tokenize(args) => tokenize::run(args, reporter),
    }
}
