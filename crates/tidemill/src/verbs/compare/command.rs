//! The arguments of `tidemill compare`.

use serde_json::Value;

use super::{exchange, invite, new, results, serve};
use crate::error::Result;
use crate::progress::Reporter;

/// Arguments of `tidemill compare`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    tidemill compare new study.toml\n  \
    tidemill compare new study --prompts drawbench.csv --source ours=run.toml --source sd2=models/sd2\n  \
    tidemill compare invite study --count 20 --url https://judge.example.org\n  \
    tidemill compare serve study\n  \
    tidemill compare results study --plot")]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Part {
    /// Draw the pictures of a study. Continues where an earlier call stopped.
    New(new::Args),
    /// Make links for raters.
    Invite(invite::Args),
    /// Show the pictures to raters, in their browsers.
    Serve(serve::Args),
    /// Which model people prefer, with intervals of 95 %.
    Results(results::Args),
    /// Write a copy of the page for a host that only serves files (zip).
    Export(exchange::ExportArgs),
    /// Read answers from such a copy (JSON lines).
    Import(exchange::ImportArgs),
    /// Write all judgements as a table (CSV or Parquet).
    Judgements(exchange::TableArgs),
}

/// Runs a part of the verb.
///
/// # Errors
/// If the study is refused or does not exist, or the work fails.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    match &args.part {
        Part::New(args) => new::run(args, reporter),
        Part::Invite(args) => invite::run(args, reporter),
        Part::Serve(args) => serve::run(args, reporter),
        Part::Results(args) => results::run(args, reporter),
        Part::Export(args) => exchange::export(args, reporter),
        Part::Import(args) => exchange::import(args, reporter),
        Part::Judgements(args) => exchange::write_table(args, reporter),
    }
}
