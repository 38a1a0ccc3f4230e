//! The stages `Prepare` and `Encode` as Python classes. A run file configures them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;
use tidemill::Run;
use tidemill::engine::device::select_devices;
use tidemill::engine::ray::ModelProvenance;
use tidemill::engine::ray::{encode_rows, prepare_rows};
use tidemill::engine::{EncodeStage, EncodedCounts, Stage};

use crate::arrow_batches::{map_batches, map_rows};
use crate::error::raise;

/// The CPU stage: decodes, filters, crops, resizes and tokenizes.
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
        map_batches(py, batch, |batch| prepare_rows(&self.0, batch))
    }
}

/// The second stage: runs the VAE and the text encoder on one device.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Encode {
    encoder: Mutex<EncodeStage>,
    batch_size: usize,
    /// Whether the run file sets libtorch's number of threads. Otherwise the calling process
    /// decides.
    has_thread_setting: bool,
    provenance: ModelProvenance,
}

#[pymethods]
impl Encode {
    #[new]
    fn new(py: Python<'_>, run_file: PathBuf, overrides: Vec<String>) -> PyResult<Self> {
        let load = || -> tidemill::Result<Self> {
            let run = Run::open(&run_file, &overrides)?;
            let (config, device) = (&run.file.encode, select_devices(&run)?[0]);
            let encode = run.load_encode(device)?;
            let encoder = Mutex::new(EncodeStage::new(&run, encode, &Arc::new(EncodedCounts::default()))?);
            let (batch_size, has_thread_setting) = (config.batch_size, run.file.engine.encode.threads > 0);
            Ok(Self { encoder, batch_size, has_thread_setting, provenance: ModelProvenance::from_run(&run)? })
        };
        py.detach(load).map_err(raise)
    }

    /// Encodes a record batch or table from `Prepare`, `encode.batch_size` kept rows at a time.
    fn __call__<'py>(&self, py: Python<'py>, batch: AnyRecordBatch) -> PyResult<Bound<'py, PyAny>> {
        map_rows(py, batch, |batches| {
            let encoder = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
            if self.has_thread_setting {
                encoder.init_thread();
            }
            let encoded = match batches.iter().all(|batch| batch.num_rows() == 0) {
                true => batches.iter().map(|batch| encoder.run(batch)).collect(),
                false => encode_rows(&*encoder, self.batch_size, batches.into_iter().map(Ok)),
            };
            self.provenance.attach_to(encoded?)
        })
    }
}
