//! Units on a Ray cluster: the run file and ticket for its workers, and reading and committing
//! units.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use pyo3::prelude::*;
use pyo3_arrow::PyTable;
use pyo3_arrow::input::AnyRecordBatch;
use tidemill::engine::dataset_sink::DatasetSink;
use tidemill::engine::device::select_devices;
use tidemill::engine::ray::{self, from_json, to_json};
use tidemill::{Result, Run};

use crate::error::raise;

/// Converts batches to a pyarrow table. Without batches it has no columns.
pub(super) fn to_pyarrow_table(py: Python<'_>, batches: Vec<RecordBatch>) -> PyResult<Bound<'_, PyAny>> {
    let schema = batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
    PyTable::try_new(batches, schema)?.into_pyarrow(py)
}

/// The complete run file as JSON with absolute paths, so that it has the same meaning on other
/// machines.
#[pyfunction]
pub fn portable(py: Python<'_>, run_file: PathBuf, overrides: Vec<String>) -> PyResult<String> {
    py.detach(|| to_json(&Run::open(&run_file, &overrides)?.to_portable()?)).map_err(raise)
}

/// The ticket with which workers process units of a run, as JSON. Opens or creates the run's
/// dataset.
#[pyfunction]
pub fn ticket(py: Python<'_>, run_file: PathBuf, overrides: Vec<String>) -> PyResult<String> {
    let make = || {
        let run = Run::open(&run_file, &overrides)?;
        run.check_models()?;
        let encode = run.load_encode(select_devices(&run)?[0])?;
        let sink = DatasetSink::open(&run, &run.prepare()?, &encode)?;
        to_json(&sink.to_ticket(&run)?)
    };
    py.detach(make).map_err(raise)
}

/// The units of a run's source, each as JSON.
#[pyfunction]
pub fn units(py: Python<'_>, run_file: PathBuf, overrides: Vec<String>) -> PyResult<Vec<String>> {
    let list = || -> Result<Vec<String>> {
        let run = Run::open(&run_file, &overrides)?;
        run.validate_source()?;
        run.source()?.units().map_err(|e| run.locate(e))?.iter().map(to_json).collect()
    };
    py.detach(list).map_err(raise)
}

/// Reads and commits the units of one run.
#[pyclass(frozen, module = "tidemill._native")]
pub struct UnitWorker(ray::UnitWorker);

#[pymethods]
impl UnitWorker {
    #[new]
    fn new(py: Python<'_>, ticket: &str) -> PyResult<Self> {
        py.detach(|| ray::UnitWorker::open(&from_json(ticket)?)).map(Self).map_err(raise)
    }

    /// The rows of a unit (JSON) as `Prepare` takes them, with the column `tidemill_unit`.
    fn read<'py>(&self, py: Python<'py>, unit: &str) -> PyResult<Bound<'py, PyAny>> {
        let batches = py.detach(|| self.0.read_unit(&from_json(unit)?)).map_err(raise)?;
        to_pyarrow_table(py, batches)
    }

    /// Writes the encoded rows of a unit and commits them. Returns their counts as JSON.
    fn commit(&self, py: Python<'_>, rows: AnyRecordBatch) -> PyResult<String> {
        let reader = rows.into_reader()?;
        let commit = move || {
            let batches: Vec<RecordBatch> = reader.collect::<std::result::Result<_, ArrowError>>()?;
            to_json(&self.0.commit_unit(&batches)?)
        };
        py.detach(commit).map_err(raise)
    }

    /// Writes a snapshot of these units (names in the dataset). Returns the counts of their rows as
    /// JSON.
    fn snapshot(&self, py: Python<'_>, units: Vec<String>) -> PyResult<String> {
        let rows = || -> Result<String> {
            let rows = self.0.write_snapshot(&units)?;
            let (rejected, quarantined) = (rows.total_rejected(), rows.total_quarantined());
            to_json(&serde_json::json!({
                "read": rows.read, "kept": rows.kept, "rejected": rejected, "quarantined": quarantined,
            }))
        };
        py.detach(rows).map_err(raise)
    }
}
