//! `tidemill compare export`, `import` and `judgements`: a copy of the page for a host that only serves
//! files, the answers that come back from it, and all judgements as a table.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use serde_json::{Value, json};
use tidemill_compare::database::Database;
use tidemill_compare::exchange::{export_site, import_answers, write_judgements};

use super::study_file::{beside, database_path};
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::verbs::shared_arguments::parse_local_path;

/// Arguments of `tidemill compare export`.
#[derive(Debug, Clone, clap::Args)]
pub struct ExportArgs {
    /// The study.
    pub study: PathBuf,
    /// The number of raters.
    #[arg(long)]
    pub raters: usize,
    /// The most comparisons of a rater.
    #[arg(long, default_value_t = 100)]
    pub comparisons: usize,
    /// Where the files will be served.
    #[arg(long)]
    pub url: String,
    /// The zip file. Default: `<study>-site.zip`.
    #[arg(long, value_parser = parse_local_path)]
    pub to: Option<PathBuf>,
}

/// Arguments of `tidemill compare import`.
#[derive(Debug, Clone, clap::Args)]
pub struct ImportArgs {
    /// The study.
    pub study: PathBuf,
    /// Files of answers.
    #[arg(required = true)]
    pub answers: Vec<PathBuf>,
}

/// Arguments of `tidemill compare judgements`.
#[derive(Debug, Clone, clap::Args)]
pub struct TableArgs {
    /// The study.
    pub study: PathBuf,
    /// The table: `.csv` or `.parquet`.
    #[arg(long, value_parser = parse_local_path)]
    pub to: PathBuf,
}

/// Writes a static copy and returns the raters' links, which cannot be shown again.
///
/// # Errors
/// If there is no study, or the file cannot be written.
pub fn export(args: &ExportArgs, reporter: &Reporter) -> Result<Value> {
    let path = database_path(&args.study);
    let database = Database::open(&path)?;
    let to = args.to.clone().unwrap_or_else(|| beside(&path, "-site.zip"));
    let failed = |source| Error::Write { path: to.display().to_string(), source };
    let url = args.url.trim_end_matches('/');
    let is_loopback =
        ["http://127.0.0.1", "http://localhost", "http://[::1]"].iter().any(|it| url.starts_with(it));
    if !url.starts_with("https://") && !is_loopback {
        let message = "--url: browsers sign answers only on pages with https://";
        return Err(Error::Arguments(message.into()));
    }
    let file = File::create(&to).map_err(failed)?;
    let raters = export_site(&database, args.raters, args.comparisons, file)?;
    if raters.len() < args.raters {
        reporter.report(format!("only {} raters: no more comparisons are left", raters.len()));
    }
    let links: Vec<String> =
        raters.iter().map(|rater| format!("{url}/index.html#{}.{}", rater.pack, rater.token)).collect();
    links.iter().for_each(|link| reporter.report(link));
    reporter.report(format!("{}: unpack it where {url} is served", to.display()));
    Ok(json!({ "verb": "compare", "site": to, "links": links }))
}

/// Reads files of answers, each as a whole or not at all.
///
/// # Errors
/// If there is no study, or a file cannot be read.
pub fn import(args: &ImportArgs, reporter: &Reporter) -> Result<Value> {
    let database = Database::open(&database_path(&args.study))?;
    let mut results = Vec::new();
    for path in &args.answers {
        let file = File::open(path).map_err(|e| Error::Missing {
            what: path.display().to_string(),
            problem: e.to_string(),
            hint: "give files that raters have downloaded".into(),
        })?;
        let counts = import_answers(&database, BufReader::new(file))?;
        reporter.report(format!(
            "{}: {} new, {} repeated, {} forged, {} unknown, {} malformed",
            path.display(),
            counts.stored,
            counts.repeated,
            counts.forged,
            counts.unknown,
            counts.malformed.len()
        ));
        results.push(json!({ "file": path, "lines": counts }));
    }
    Ok(json!({ "verb": "compare", "files": results }))
}

/// Writes all judgements.
///
/// # Errors
/// If there is no study, or the file cannot be written.
pub fn write_table(args: &TableArgs, reporter: &Reporter) -> Result<Value> {
    let database = Database::open(&database_path(&args.study))?;
    let judgements = write_judgements(&database, &args.to)?;
    reporter.report(format!("{judgements} judgements in {}", args.to.display()));
    Ok(json!({ "verb": "compare", "judgements": judgements, "table": args.to }))
}
