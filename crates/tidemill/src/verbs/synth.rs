//! `tidemill synth`: draws captioned synthetic scenes, the data of the quickstart.

use std::path::PathBuf;

use serde_json::{Value, json};
use tidemill_synth::{Combinations, SynthConfig};

use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Arguments of `tidemill synth`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  tidemill synth data/scenes --rows 20000 --seed 7")]
pub struct Args {
    /// Folder for the Parquet files and synth.json.
    pub output: PathBuf,
    /// Rows in all files together, broken ones included.
    #[arg(long, default_value_t = SynthConfig::default().rows)]
    pub rows: usize,
    /// Number of Parquet files.
    #[arg(long, default_value_t = SynthConfig::default().files)]
    pub files: usize,
    /// Rows in a row group.
    #[arg(long, default_value_t = SynthConfig::default().row_group_rows)]
    pub row_group_rows: usize,
    /// Seed of every random choice. Equal arguments give equal bytes.
    #[arg(long, default_value_t = SynthConfig::default().seed)]
    pub seed: u64,
    /// Shortest side of an image, in pixels.
    #[arg(long, default_value_t = SynthConfig::default().min_side)]
    pub min_side: u32,
    /// Longest side of an image, in pixels.
    #[arg(long, default_value_t = SynthConfig::default().max_side)]
    pub max_side: u32,
    /// Draw only the combinations of colour and shape that are held out otherwise.
    #[arg(long)]
    pub held_out: bool,
    /// Share of rows with a deliberately broken image, 0 to 1.
    #[arg(long, default_value_t = SynthConfig::default().broken)]
    pub broken: f64,
}

/// Draws the scenes and returns what was written.
///
/// # Errors
/// If an argument is invalid, or the folder cannot be written.
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
    let report = tidemill_synth::write_scenes(&config, &args.output)?;
    reporter.report(format!(
        "drew {} captioned scenes ({} with a broken image) into {}: {} files, {:.1} MB",
        report.rows,
        report.count_unreadable_images(),
        args.output.display(),
        report.files.len(),
        report.bytes as f64 / 1e6
    ));
    let report = serde_json::to_value(&report);
    report
        .map(|report| json!({ "verb": "synth", "output": args.output, "report": report }))
        .map_err(|e| Error::Write { path: "the report".into(), source: e.into() })
}
