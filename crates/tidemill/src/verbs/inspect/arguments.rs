//! The arguments of `tidemill inspect`.

use std::path::PathBuf;

use crate::verbs::shared_arguments::parse_local_path;

/// The largest number of rows in a histogram. Of larger datasets, the first rows are used.
pub const MAX_HISTOGRAM_ROWS: u64 = 1_000_000;

/// Arguments of `tidemill inspect`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill inspect runs/quickstart/dataset\n  tidemill inspect data/scenes\n  tidemill inspect 's3://bucket/shards/*.tar'\n  \
    tidemill inspect s3://bucket/run/dataset --verify\n  tidemill inspect runs/quickstart/dataset --list rejected --reason min_side\n  \
    tidemill inspect run.toml --sheet rows.png --seed 7"
)]
pub struct Args {
    /// A dataset's folder or URI, a run file (for its dataset), or pairs of any format: a file, a
    /// folder, a URI or a glob.
    pub path: PathBuf,
    /// Override one key of the run file; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub overrides: Vec<String>,
    /// List rows of a dataset that are not used: key, source file and row, reason.
    #[arg(long, value_enum, value_name = "STATUS")]
    pub list: Option<UnusedStatus>,
    /// List only rows of this filter or of this kind of error.
    #[arg(long, requires = "list")]
    pub reason: Option<String>,
    /// The largest number of rows to list.
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    /// Read every file of a dataset and compare it with its commit: checksums, sizes, rows.
    #[arg(long)]
    pub verify: bool,
    /// Draw random rows of a run file's source, as training sees them and with their captions, into
    /// this PNG file.
    #[arg(long, value_name = "FILE", value_parser = parse_local_path)]
    pub sheet: Option<PathBuf>,
    /// Seed of the sheet's random rows.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Show rejected rows on the sheet too, in a red frame.
    #[arg(long, requires = "sheet")]
    pub rejected: bool,
}

/// The status of a row that is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum UnusedStatus {
    /// A filter rejected the row.
    Rejected,
    /// The row is unreadable.
    Quarantined,
}
