//! `tidemill compare invite`: links for raters.

use std::path::PathBuf;

use serde_json::{Value, json};
use tidemill_compare::database::Database;

use super::study_file::database_path;
use crate::error::Result;
use crate::progress::Reporter;

/// Arguments of `tidemill compare invite`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The study.
    pub study: PathBuf,
    /// The number of raters.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: u32,
    /// Where raters reach the server.
    #[arg(long, default_value = "http://127.0.0.1:8765")]
    pub url: String,
}

/// Adds raters and returns their links. They cannot be shown again.
///
/// # Errors
/// If there is no study.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let database = Database::open(&database_path(&args.study))?;
    let url = args.url.trim_end_matches('/');
    let mut links = Vec::new();
    for _ in 0..args.count {
        let (_, token) = database.add_rater(None)?;
        links.push(format!("{url}/#{token}"));
    }
    links.iter().for_each(|link| reporter.report(link));
    Ok(json!({ "verb": "compare", "links": links }))
}
