//! `Prepare` and `Encode` as Python classes, configured by a run file.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;
use tidemill::Run;
use tidemill::engine::device::devices;

use crate::batch;
use crate::error::raise;

/// The CPU stage: decode, filter, crop, resize, tokenise.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Prepare(tidemill_data::Prepare);

#[pymethods]
impl Prepare {
    #[new]
    fn new(py: Python<'_>, run_file: PathBuf, overrides: Vec<String>) -> PyResult<Self> {
        py.detach(|| Run::open(&run_file, &overrides)?.prepare()).map(Self).map_err(raise)
    }

    /// Prepares a record batch or a table of encoded images and captions.
    fn __call__<'py>(&self, py: Python<'py>, batch: AnyRecordBatch) -> PyResult<Bound<'py, PyAny>> {
        batch::map(py, batch, |batch| Ok(self.0.run(batch)?))
    }
}

/// The second stage: the VAE and the text encoder on one device.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Encode(Mutex<tidemill::Encode>);

#[pymethods]
impl Encode {
    #[new]
    fn new(py: Python<'_>, run_file: PathBuf, overrides: Vec<String>) -> PyResult<Self> {
        let load = || {
            let run = Run::open(&run_file, &overrides)?;
            let device = devices(&run)?[0];
            tidemill::Encode::load(&run.models()?, &run.file.encode, device)
        };
        py.detach(load).map(|encode| Self(Mutex::new(encode))).map_err(raise)
    }

    /// Encodes a record batch or a table that `Prepare` gave.
    fn __call__<'py>(&self, py: Python<'py>, batch: AnyRecordBatch) -> PyResult<Bound<'py, PyAny>> {
        batch::map(py, batch, |batch| self.0.lock().unwrap_or_else(PoisonError::into_inner).run(batch))
    }
}
