//! Online training with encoders on a Ray cluster: the Python client, and the preparation on its
//! workers.

use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;
use tidemill::engine::ray::{from_json, to_json};
use tidemill::online::{self, RemoteEncoders};
use tidemill::{Error, Result, Run};
use tidemill_data::InputUnit;

use crate::error::{InputError, raise};
use crate::ray::unit_worker::to_pyarrow_table;

/// A Python object with the methods `want(unit, epoch, resolution)`, which returns a request
/// number, and `take(number)`, which returns a table or `None`.
#[derive(Debug)]
pub struct PythonEncoders(pub Py<PyAny>);

impl RemoteEncoders for PythonEncoders {
    fn request(&self, unit: &InputUnit, epoch: u64, resolution: u32) -> Result<u64> {
        let unit = to_json(unit)?;
        let want = |py: Python<'_>| self.0.call_method1(py, "want", (unit, epoch, resolution))?.extract(py);
        Python::attach(want).map_err(to_error)
    }

    fn try_receive(&self, request: u64) -> Result<Option<Vec<RecordBatch>>> {
        let take = |py: Python<'_>| -> PyResult<_> {
            let rows: Option<AnyRecordBatch> = self.0.call_method1(py, "take", (request,))?.extract(py)?;
            rows.map(AnyRecordBatch::into_reader).transpose()
        };
        let Some(reader) = Python::attach(take).map_err(to_error)? else { return Ok(None) };
        let batches: std::result::Result<Vec<RecordBatch>, ArrowError> = reader.collect();
        Ok(Some(batches?))
    }
}

/// `InputError` becomes a refusal; every other exception an error of the cluster.
fn to_error(error: PyErr) -> Error {
    Python::attach(|py| {
        let message = error.value(py).to_string();
        if error.is_instance_of::<InputError>(py) { Error::Refused(message) } else { Error::Cluster(message) }
    })
}

/// Reads and prepares units of one run.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Preparer(online::UnitPreparer);

#[pymethods]
impl Preparer {
    #[new]
    fn new(py: Python<'_>, run_file: PathBuf, overrides: Vec<String>) -> PyResult<Self> {
        py.detach(|| online::UnitPreparer::open(Run::open(&run_file, &overrides)?)).map(Self).map_err(raise)
    }

    /// Reads and prepares the rows of a unit (JSON).
    fn prepare<'py>(
        &self,
        py: Python<'py>,
        unit: &str,
        epoch: u64,
        resolution: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let prepare = || self.0.prepare_unit(&from_json(unit)?, epoch, resolution);
        let batches = py.detach(prepare).map_err(raise)?;
        to_pyarrow_table(py, batches)
    }
}
