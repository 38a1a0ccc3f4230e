//! The record of a step, and the best step.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidemill_io::Location;
use tidemill_train::{Checkpoints, select_best};

use super::keys::{parse_recorded_step, record_key};
use crate::error::{Error, Result};
use crate::run_file::Run;

/// Numbers by name.
pub type Numbers = BTreeMap<String, f64>;

/// What is known of a step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The checkpoint's step.
    pub step: u64,
    /// The checkpoint's digest.
    pub checkpoint: String,
    /// The number of pictures.
    pub images: usize,
    /// The number of pictures that could not be drawn or judged.
    pub failed: usize,
    /// The numbers at the first guidance scale.
    pub metrics: Numbers,
    /// The numbers at each guidance scale.
    pub guidance: Vec<GuidanceNumbers>,
    /// The mean scores of each category at the first guidance scale.
    pub categories: BTreeMap<String, Numbers>,
    /// The validation loss by tenth of the timesteps, as training logged it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation_loss_by_timestep: Vec<Option<f64>>,
    /// What a reader must know about the numbers.
    pub remarks: Vec<String>,
    /// Who evaluated the step, with the number of pictures of each.
    pub evaluators: BTreeMap<String, usize>,
    /// The time of all evaluators together.
    pub seconds: f64,
    /// The table of all pictures, below the folder of the evaluations.
    pub table: String,
}

/// The numbers at one guidance scale.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GuidanceNumbers {
    /// The guidance scale.
    pub scale: f64,
    /// Its numbers.
    pub metrics: Numbers,
}

/// The steps that have a record, in order.
///
/// # Errors
/// If the store fails.
pub fn recorded_steps(location: &Location) -> Result<Vec<u64>> {
    let mut steps: Vec<u64> =
        location.list_names("")?.iter().filter_map(|key| parse_recorded_step(key)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// The record of a step; `None` if there is none.
///
/// # Errors
/// If the store fails, or the record is damaged.
pub fn read_record(location: &Location, step: u64) -> Result<Option<Record>> {
    let key = record_key(step);
    let parse = |bytes: bytes::Bytes| {
        serde_json::from_slice(&bytes).map_err(|e| Error::Unit(format!("{}: {e}", location.uri_of(&key))))
    };
    location.get_if_present(&key)?.map(parse).transpose()
}

/// All records, in the order of their steps.
///
/// # Errors
/// If the store fails, or a record is damaged.
pub fn read_records(location: &Location) -> Result<Vec<Record>> {
    let records = recorded_steps(location)?.into_iter().map(|step| read_record(location, step));
    records.filter_map(Result::transpose).collect()
}

/// Opens the folder of a run's evaluations.
///
/// # Errors
/// If its URI is not valid.
pub fn open_evaluations(run: &Run) -> Result<Location> {
    let default = || Path::new(&run.output()).join("evaluations").display().to_string();
    let uri = run.file.eval.uri.clone().unwrap_or_else(default);
    Ok(Location::open(&uri)?)
}

/// The error after a signal: how many of the run's checkpoints are evaluated.
pub fn interrupted_error(run: &Run) -> Error {
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()));
    let steps = checkpoints.and_then(|checkpoints| checkpoints.list_steps()).unwrap_or_default();
    let recorded = open_evaluations(run).and_then(|location| recorded_steps(&location)).unwrap_or_default();
    let done = steps.iter().filter(|step| recorded.contains(step)).count() as u64;
    Error::Interrupted { done, total: steps.len() as u64, unit: "checkpoints" }
}

/// The step with the best value of a number of the records, among those that still have a
/// checkpoint.
///
/// # Errors
/// If there is no such record; the message names the numbers there are.
pub fn find_best_step(run: &Run, name: &str) -> Result<u64> {
    let location = open_evaluations(run)?;
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?.list_steps()?;
    let mut records = read_records(&location)?;
    records.retain(|record| checkpoints.contains(&record.step));
    let values = records.iter().filter_map(|record| Some((record.step, *record.metrics.get(name)?)));
    select_best(values.collect(), name, 1).pop().ok_or_else(|| {
        let known: std::collections::BTreeSet<&String> =
            records.iter().flat_map(|record| record.metrics.keys()).collect();
        let known = known.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let problem = if known.is_empty() {
            format!("no checkpoint that there is has been evaluated in {}", location.uri())
        } else {
            format!("there is no such number in {}, only {known}", location.uri())
        };
        Error::Missing {
            what: format!("the best checkpoint by `{name}`"),
            problem,
            hint: "run `tidemill eval` first".into(),
        }
    })
}
