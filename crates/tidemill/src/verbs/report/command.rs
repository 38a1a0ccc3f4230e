//! The arguments of `tidemill report`, and where the page goes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tidemill_report::{Report, RunReport, render};

use super::live::serve;
use super::run_report::{FILE_NAME, folder_name, read_run};
use crate::error::Result;
use crate::progress::Reporter;
use crate::verbs::image_files::write_file;
use crate::verbs::shared_arguments::parse_local_path;

/// Arguments of `tidemill report`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill report runs/mine\n  tidemill report runs/a runs/b --to compared.html\n  \
    tidemill report runs/mine --serve 127.0.0.1:8080"
)]
pub struct Args {
    /// The output folders of runs. Several are shown side by side.
    #[arg(required = true, value_name = "FOLDER")]
    pub folders: Vec<PathBuf>,
    /// The file to write. Default: report.html in the run's folder, or here for several runs.
    #[arg(long, value_name = "FILE", value_parser = parse_local_path)]
    pub to: Option<PathBuf>,
    /// A study of `tidemill compare` whose figure is shown, too.
    #[arg(long, value_name = "FILE")]
    pub study: Option<PathBuf>,
    /// Serve the page at this address, made anew from the folders, until a signal ends it. Without an
    /// address: 127.0.0.1:8766.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:8766")]
    pub serve: Option<SocketAddr>,
}

/// Writes or serves the report.
///
/// # Errors
/// If a folder has no run, or the file cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    if let Some(address) = args.serve {
        let (folders, study) = (args.folders.clone(), args.study.clone());
        let page = move || Ok(render(&make_report(&folders, study.as_deref())?));
        // What is wrong with the folders shows before the page is asked for.
        page()?;
        serve(address, Arc::new(page), reporter)?;
        return Ok(json!({ "verb": "report", "served": address.to_string() }));
    }
    let default = match args.folders.as_slice() {
        [folder] => folder.join(FILE_NAME),
        _ => PathBuf::from(FILE_NAME),
    };
    let path = args.to.clone().unwrap_or(default);
    let report = make_report(&args.folders, args.study.as_deref())?;
    let page = render(&report);
    write_file(&path, page.as_bytes())?;
    let remarks: Vec<&String> = report.runs.iter().flat_map(|run| &run.remarks).collect();
    remarks.iter().for_each(|remark| reporter.report(remark));
    reporter.report(format!("report in {} ({:.1} MB)", path.display(), page.len() as f64 / 1e6));
    Ok(json!({ "verb": "report", "path": path, "bytes": page.len(), "remarks": remarks }))
}

/// Writes the report of a run into its folder. Returns its path.
///
/// # Errors
/// If it cannot be written.
pub fn write_report(folder: &Path) -> Result<PathBuf> {
    let path = folder.join(FILE_NAME);
    write_file(&path, render(&make_report(&[folder.into()], None)?).as_bytes())?;
    Ok(path)
}

fn make_report(folders: &[PathBuf], study: Option<&Path>) -> Result<Report> {
    let mut runs: Vec<RunReport> =
        folders.iter().map(|folder| read_run(folder, study)).collect::<Result<_>>()?;
    let names: BTreeSet<&String> = runs.iter().map(|run| &run.name).collect();
    if names.len() < runs.len() {
        runs.iter_mut().zip(folders).for_each(|(run, folder)| run.name = folder_name(folder));
    }
    let title = runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
    let made_by = format!("tidemill {}", env!("CARGO_PKG_VERSION"));
    Ok(Report { title, made_by, runs })
}
