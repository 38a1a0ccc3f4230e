//! `tidemill synth`: draws captioned scenes, the quickstart's world.

use std::path::PathBuf;

use serde_json::{Value, json};
use tidemill_synth::{Combinations, SynthConfig};

use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Arguments of `tidemill synth`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  tidemill synth data/scenes --rows 20000 --seed 7")]
pub struct Args {
    /// Folder to write the Parquet files and synth.json to.
    pub output: PathBuf,
    /// Rows over all files, broken ones included.
    #[arg(long, default_value_t = SynthConfig::default().rows)]
    pub rows: usize,
    /// Parquet files to spread them over.
    #[arg(long, default_value_t = SynthConfig::default().files)]
    pub files: usize,
    /// Rows per row group.
    #[arg(long, default_value_t = SynthConfig::default().row_group_rows)]
    pub row_group_rows: usize,
    /// Seed of every choice; equal settings give equal bytes.
    #[arg(long, default_value_t = SynthConfig::default().seed)]
    pub seed: u64,
    /// Shortest side of a picture, in pixels.
    #[arg(long, default_value_t = SynthConfig::default().min_side)]
    pub min_side: u32,
    /// Longest side of a picture, in pixels.
    #[arg(long, default_value_t = SynthConfig::default().max_side)]
    pub max_side: u32,
    /// Draw only the combinations of colour and shape that are otherwise held out.
    #[arg(long)]
    pub held_out: bool,
    /// Share of rows to break on purpose, 0 to 1.
    #[arg(long, default_value_t = SynthConfig::default().broken)]
    pub broken: f64,
}

/// Draws the scenes and tells what was written.
///
/// # Errors
/// A setting that cannot be met, or a folder that cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let config = SynthConfig {
        rows: args.rows,
        files: args.files,
        row_group_rows: args.row_group_rows,
        seed: args.seed,
        min_side: args.min_side,
        max_side: args.max_side,
        combinations: if args.held_out { Combinations::HeldOut } else { Combinations::Trained },
        broken: args.broken,
    };
    let report = tidemill_synth::synth(&config, &args.output)?;
    reporter.report(format!(
        "drew {} captioned scenes ({} with a broken image) into {}: {} files, {:.1} MB",
        report.rows,
        report.unreadable_images(),
        args.output.display(),
        report.files.len(),
        report.bytes as f64 / 1e6
    ));
    let report = serde_json::to_value(&report);
    report
        .map(|report| json!({ "verb": "synth", "output": args.output, "report": report }))
        .map_err(|e| Error::Write { path: "the report".into(), source: e.into() })
}
