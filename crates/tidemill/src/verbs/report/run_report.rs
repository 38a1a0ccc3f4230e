//! What the page has of a run.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::Path;

use tidemill_io::redact_text;
use tidemill_report::metrics::{Metrics, read_metrics};
use tidemill_report::preprocessing::read_preprocessing_charts;
use tidemill_report::{Gallery, Picture, RunReport};
use tidemill_telemetry::{EVENTS_FILE, read_events};

use super::evaluations::read_evaluations;
use super::lost_time::{event_marks, lost_time_table};
use super::overview::overview;
use super::pictures::previews;
use super::plan_section::{PlanSection, plan_section};
use super::rows::read_rows;
use super::step_profile::{StepProfile, read_step_profile};
use crate::engine::preprocess_log::PREPROCESS_LOG;
use crate::error::{Error, Result};
use crate::run_file::Run;
use crate::verbs::compare::draw_results;

/// The report's file in the folder of its run.
pub const FILE_NAME: &str = "report.html";

/// Reads a run's folder. What cannot be read is told in the remarks, and what can be is shown.
///
/// # Errors
/// If there is nothing of a run.
pub fn read_run(folder: &Path, study: Option<&Path>) -> Result<RunReport> {
    let has = |name: &str| folder.join(name).exists();
    if !["metrics.jsonl", "dataset", "evaluations"].into_iter().any(has) {
        return Err(Error::Missing {
            what: format!("a run in {}", folder.display()),
            problem: "it has no metrics.jsonl, dataset or evaluations".into(),
            hint: "give the output folder of a run".into(),
        });
    }
    let mut remarks = Vec::new();
    let metrics = match File::open(folder.join("metrics.jsonl")) {
        Ok(file) => read_metrics(BufReader::with_capacity(1 << 20, file)),
        Err(error) => {
            remarks.push(format!("no training is shown: metrics.jsonl: {error}"));
            Metrics::default()
        }
    };
    remarks.extend(metrics.remarks.iter().cloned());
    let run = read_run_file(folder, &mut remarks);
    let events = read_events(folder).unwrap_or_else(|error| {
        remarks.push(format!("no events are shown: {EVENTS_FILE}: {error}"));
        Vec::new()
    });
    let lost_time = lost_time_table(&events, &metrics);
    let (rows, tables) = read_rows(folder, &mut remarks);
    let evaluations = read_evaluations(folder, &mut remarks);
    let mut charts = metrics.charts.clone();
    match File::open(folder.join(PREPROCESS_LOG)) {
        Ok(file) => charts.extend(read_preprocessing_charts(BufReader::new(file))),
        Err(error) if error.kind() == ErrorKind::NotFound => (),
        Err(error) => remarks.push(format!("no stages are shown: {PREPROCESS_LOG}: {error}")),
    }
    charts.extend(evaluations.charts);
    let StepProfile { memory, timeline } = read_step_profile(folder, &mut remarks);
    charts.extend(memory);
    let mut galleries: Vec<Gallery> = previews(folder, &mut remarks).into_iter().collect();
    galleries.extend(evaluations.galleries);
    let PlanSection { table: plan, chart } =
        run.as_ref().map(|run| plan_section(run, &mut remarks)).unwrap_or_default();
    let mut pictures: Vec<(String, Picture)> = timeline.into_iter().chain(chart).collect();
    if let Some(study) = study {
        pictures.push(("Preferences of people, with 95 % intervals".into(), draw_study(study)?));
    }
    Ok(RunReport {
        name: run.as_ref().map_or_else(|| folder_name(folder), |run| run.file.name.clone()),
        facts: overview(run.as_ref(), &metrics, rows.as_ref()),
        charts,
        marks: [metrics.marks, event_marks(&events)].concat(),
        galleries,
        pictures,
        tables: plan.into_iter().chain(lost_time).chain(tables).chain(evaluations.table).collect(),
        texts: read_texts(folder),
        remarks,
    })
}

/// The run file that training has left in the folder.
fn read_run_file(folder: &Path, remarks: &mut Vec<String>) -> Option<Run> {
    let path = folder.join(Run::SAVED_NAME);
    if !path.exists() {
        return None;
    }
    Run::open(&path, &[]).map_err(|error| remarks.push(format!("{}: {error}", path.display()))).ok()
}

/// The name of a run's folder.
pub fn folder_name(folder: &Path) -> String {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
    absolute
        .file_name()
        .map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn read_texts(folder: &Path) -> Vec<(String, String)> {
    let texts = [
        ("Run file, with all defaults", folder.join(Run::SAVED_NAME)),
        (
            "What identifies the run: models, schedule, digest of the data",
            folder.join("checkpoints/run.json"),
        ),
    ];
    let read = |(title, path): (&str, std::path::PathBuf)| {
        // A report is passed on, and signed URLs open what they name.
        Some((title.to_owned(), redact_text(&std::fs::read_to_string(path).ok()?)))
    };
    texts.into_iter().filter_map(read).collect()
}

fn draw_study(study: &Path) -> Result<Picture> {
    Ok(Picture::new("image/svg+xml", draw_results(study)?.as_bytes()))
}
