//! `tidemill inspect`: what a dataset, a Parquet source or a run file holds: counts, histograms, lists of what was refused,
//! a sheet of pictures. Never touches libtorch.

use std::path::PathBuf;

use serde_json::{Value, json};
use tidemill_data::ClipTokenizer;

use super::{contact_sheet, dataset, parquet};
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::verbs::shared_arguments::parse_local_path;

/// Rows that histograms are made of, at most: of a large dataset the first ones.
pub const MOST_ROWS: u64 = 1_000_000;

/// Arguments of `tidemill inspect`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill inspect runs/quickstart/dataset\n  tidemill inspect data/scenes\n  \
    tidemill inspect s3://bucket/run/dataset --verify\n  tidemill inspect runs/quickstart/dataset --list rejected --reason min_side\n  \
    tidemill inspect run.toml --sheet rows.png --seed 7"
)]
pub struct Args {
    /// A dataset's folder or URI, a run file (its dataset is looked at), a Parquet file, or a folder of them.
    pub path: PathBuf,
    /// Override one key of the run file; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub overrides: Vec<String>,
    /// List the rows of a dataset that are not used: key, source file and row, reason.
    #[arg(long, value_enum, value_name = "STATUS")]
    pub list: Option<Refused>,
    /// List only those of this filter or this kind of error.
    #[arg(long, requires = "list")]
    pub reason: Option<String>,
    /// List at most so many.
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    /// Read every file of a dataset and compare it with what was committed: checksums, sizes, rows.
    #[arg(long)]
    pub verify: bool,
    /// Draw random rows of a run file's source as they go into training, with captions, into this PNG file.
    #[arg(long, value_name = "FILE", value_parser = parse_local_path)]
    pub sheet: Option<PathBuf>,
    /// Seed of the sheet's rows.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Show rejected rows on the sheet too, in a red frame.
    #[arg(long, requires = "sheet")]
    pub rejected: bool,
}

/// Why a row is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Refused {
    /// A filter said no.
    Rejected,
    /// It is unreadable.
    Quarantined,
}

/// Says what the path holds.
///
/// # Errors
/// If there is nothing there, or it is neither dataset nor Parquet, or not what was committed.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    if args.path.extension().is_some_and(|extension| extension == "toml") {
        return run_file(args, reporter);
    }
    if args.sheet.is_some() {
        return Err(Error::Arguments(
            "--sheet draws from the source; give the run file that names it".into(),
        ));
    }
    if !args.overrides.is_empty() {
        return Err(Error::Arguments("--set changes a run file's settings; give the run file".into()));
    }
    let path = args.path.to_string_lossy();
    match path.contains("://") || args.path.join("dataset.json").is_file() {
        true => dataset::inspect(&path, None, args, reporter),
        false if args.list.is_some() || args.verify => Err(Error::Arguments(
            "--list and --verify are about a dataset; give its folder or a run file".into(),
        )),
        false => parquet::inspect(&args.path, reporter),
    }
}

/// The run's dataset, and its source for the sheet, which can be drawn before there is any dataset.
fn run_file(args: &Args, reporter: &Reporter) -> Result<Value> {
    use tidemill_store::Error as Store;
    let run = Run::open(&args.path, &args.overrides)?;
    let sheet =
        args.sheet.as_ref().map(|path| contact_sheet::draw(&run, path, args, reporter)).transpose()?;
    let tokenizer = run.models().ok().and_then(|models| ClipTokenizer::open(&models.tokenizer()).ok());
    let found = dataset::inspect(&run.dataset(), tokenizer.as_ref(), args, reporter);
    let mut result = match found {
        Err(Error::Store(Store::NoDataset { .. } | Store::NoManifest { .. })) if sheet.is_some() => {
            json!({ "verb": "inspect", "kind": "source", "path": args.path })
        }
        found => found?,
    };
    if let Some(sheet) = sheet {
        result["sheet"] = sheet;
    }
    Ok(result)
}
