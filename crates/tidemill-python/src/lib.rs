//! The native part of the Python package `tidemill`: the command line and its verbs, the two stages
//! over Arrow's C data interface, and the training stream. All computation runs without the GIL.

mod arrow_batches;
mod denoiser;
mod dlpack;
mod error;
mod optimizer_probe;
mod ray;
mod stages;
mod stream;

use pyo3::prelude::*;

/// The module `tidemill._native`.
#[pymodule]
mod _native {
    use std::path::PathBuf;
    use std::sync::{Arc, PoisonError};

    use tidemill::cli;
    use tidemill::online::RemoteEncoders;
    use tidemill::sampling::trained_weights::{self, WeightSelection};
    use tidemill::verbs::train::{MakeDenoiser, TrainHooks};
    use tidemill::{Run, open_files};
    use tidemill_models::TrainableDenoiser;
    use tidemill_train::StepMetrics;

    use super::denoiser::{FirstException, PythonDenoiser, keep_first, read_parameters};
    use super::ray::PythonEncoders;
    use super::{Py, PyAny, PyResult, Python, pyfunction};

    /// The version of the workspace in `Cargo.toml`: `tidemill.__version__`.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use super::arrow_batches::buffer_addresses;
    #[pymodule_export]
    use super::dlpack::Tensor;
    #[pymodule_export]
    use super::error::{InputError, LostPeersError, TidemillError};
    #[pymodule_export]
    use super::optimizer_probe::probe_optimizer;
    #[pymodule_export]
    use super::ray::Preparer;
    #[pymodule_export]
    use super::ray::{UnitWorker, portable, ticket, units};
    #[pymodule_export]
    use super::stages::{Encode, Prepare};
    #[pymodule_export]
    use super::stream::{Batch, Stream};

    /// Runs in every process of Tidemill, including those of Ray and PyTorch.
    #[pymodule_init]
    fn init() {
        open_files::raise_open_file_limit();
    }

    /// Prints lines for people to standard output from now on.
    #[pyfunction]
    fn redirect_status_to_stdout() {
        tidemill::progress::redirect_status_to_stdout();
    }

    /// Runs a command line that starts with the program name. Returns the exit code.
    #[pyfunction]
    fn main(py: Python<'_>, argv: Vec<String>) -> u8 {
        py.detach(|| cli::main(argv))
    }

    /// Runs one verb with its arguments and returns its result as JSON.
    #[pyfunction]
    fn call(py: Python<'_>, arguments: Vec<String>) -> PyResult<String> {
        let result = py.detach(|| cli::call_verb(arguments)).map_err(super::error::raise)?;
        Ok(result.to_string())
    }

    /// Trains like the verb `train` with these arguments.
    ///
    /// Calls `listener` with each line of metrics as JSON, on every rank. If it raises, or if
    /// `stop` (a `threading.Event`) is set, training ends after a checkpoint. `encoders` encodes
    /// rows in other processes. `denoiser` (a `torch.nn.Module`) is trained instead of the U-Net.
    #[pyfunction]
    fn train(
        py: Python<'_>,
        arguments: Vec<String>,
        listener: Py<PyAny>,
        encoders: Option<Py<PyAny>>,
        denoiser: Option<Py<PyAny>>,
        stop: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let remote_encoders =
            encoders.map(|encoders| Arc::new(PythonEncoders(encoders)) as Arc<dyn RemoteEncoders>);
        let exception = FirstException::default();
        let (in_listener, in_stop, in_denoiser) = (exception.clone(), exception.clone(), exception.clone());
        let listener = move |metrics: &StepMetrics| {
            let line = serde_json::to_string(metrics).unwrap_or_default();
            let error = Python::attach(|py| listener.call1(py, (line,)).err());
            let mut first = in_listener.lock().unwrap_or_else(PoisonError::into_inner);
            *first = first.take().or(error);
            first.is_none()
        };
        let denoiser = denoiser.map(|module| -> MakeDenoiser<'_> {
            Box::new(move |device| {
                let module = PythonDenoiser::new(&module, device, in_denoiser)?;
                Ok(Box::new(module) as Box<dyn TrainableDenoiser>)
            })
        });
        let stop = move || {
            let Some(event) = &stop else { return false };
            let is_set = Python::attach(|py| event.call_method0(py, "is_set")?.extract(py));
            is_set.unwrap_or_else(|error| {
                keep_first(&in_stop, error);
                true
            })
        };
        let hooks = TrainHooks {
            on_metrics: Box::new(listener),
            should_stop: Box::new(stop),
            remote_encoders,
            denoiser,
        };
        let result = py.detach(|| cli::call_train(arguments, hooks));
        let exception = exception.lock().unwrap_or_else(PoisonError::into_inner).take();
        match exception {
            Some(error) => Err(error),
            None => Ok(result.map_err(super::error::raise)?.to_string()),
        }
    }

    /// Loads the weights of a run's last checkpoint into a `torch.nn.Module`. Returns the
    /// checkpoint's step.
    #[pyfunction]
    fn load(
        py: Python<'_>,
        run_file: PathBuf,
        overrides: Vec<String>,
        module: Py<PyAny>,
        averaged: bool,
    ) -> PyResult<u64> {
        let load = || {
            let run = Run::open(&run_file, &overrides)?;
            let selection = WeightSelection { step: run.file.sample.step, averaged };
            trained_weights::load_weights(&run, &read_parameters(&module)?, selection)
        };
        py.detach(load).map_err(super::error::raise)
    }
}
