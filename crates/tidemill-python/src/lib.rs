//! The native half of the Python package `tidemill`: the command line and the verbs, the two stages over Arrow's C
//! data interface, and the training stream. Everything that is work runs without the GIL.

mod batch;
mod denoiser;
mod dlpack;
mod error;
mod online;
mod probe;
mod stages;
mod stream;
mod units;

use pyo3::prelude::*;

/// The module `tidemill._native`.
#[pymodule]
mod _native {
    use std::path::PathBuf;
    use std::sync::{Arc, PoisonError};

    use tidemill::cli;
    use tidemill::online::RemoteEncoders;
    use tidemill::sampling::trained_weights;
    use tidemill::verbs::train::{MakeDenoiser, TrainHooks};
    use tidemill::{Run, open_files};
    use tidemill_models::TrainableDenoiser;
    use tidemill_train::StepMetrics;

    use super::denoiser::{PythonDenoiser, Raised, parameters};
    use super::online::Asked;
    use super::{Py, PyAny, PyResult, Python, pyfunction};

    /// The version of the workspace in `Cargo.toml`: `tidemill.__version__`.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use super::batch::buffer_addresses;
    #[pymodule_export]
    use super::dlpack::Tensor;
    #[pymodule_export]
    use super::error::{InputError, LostPeersError, TidemillError};
    #[pymodule_export]
    use super::online::Preparer;
    #[pymodule_export]
    use super::probe::probe_optimizer;
    #[pymodule_export]
    use super::stages::{Encode, Prepare};
    #[pymodule_export]
    use super::stream::{Batch, Stream};
    #[pymodule_export]
    use super::units::{UnitWorker, portable, ticket, units};

    /// Every process that works for Tidemill comes by here, Ray's and PyTorch's as well.
    #[pymodule_init]
    fn begin() {
        open_files::raise_open_file_limit();
    }

    /// Runs a command line, program name first, and returns the exit code.
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

    /// Trains, as the verb `train` does with these arguments. `listener` is called with each line of metrics as JSON, on
    /// every rank; if it raises, training ends after a checkpoint. So it does once `stop`, a `threading.Event`, is set.
    /// `encoders` has rows encoded elsewhere. `denoiser`, a `torch.nn.Module`, is trained in place of the U-Net.
    #[pyfunction]
    fn train(
        py: Python<'_>,
        arguments: Vec<String>,
        listener: Py<PyAny>,
        encoders: Option<Py<PyAny>>,
        denoiser: Option<Py<PyAny>>,
        stop: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let elsewhere = encoders.map(|encoders| Arc::new(Asked(encoders)) as Arc<dyn RemoteEncoders>);
        let raised = Raised::default();
        let (heard, asked, denoised) = (raised.clone(), raised.clone(), raised.clone());
        let listener = move |metrics: &StepMetrics| {
            let line = serde_json::to_string(metrics).unwrap_or_default();
            let error = Python::attach(|py| listener.call1(py, (line,)).err());
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            *heard = heard.take().or(error);
            heard.is_none()
        };
        let denoiser = denoiser.map(|module| -> MakeDenoiser<'_> {
            Box::new(move |device| {
                let module = PythonDenoiser::new(&module, device, denoised)?;
                Ok(Box::new(module) as Box<dyn TrainableDenoiser>)
            })
        });
        let stop = move || {
            let Some(event) = &stop else { return false };
            let is_set = Python::attach(|py| event.call_method0(py, "is_set")?.extract(py));
            is_set.unwrap_or_else(|error| {
                asked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                true
            })
        };
        let hooks = TrainHooks {
            on_metrics: Box::new(listener),
            should_stop: Box::new(stop),
            remote_encoders: elsewhere,
            denoiser,
        };
        let result = py.detach(|| cli::call_train(arguments, hooks));
        let raised = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        match raised {
            Some(error) => Err(error),
            None => Ok(result.map_err(super::error::raise)?.to_string()),
        }
    }

    /// Puts the weights of a run's last checkpoint into a `torch.nn.Module`; gives the step that they are of.
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
            trained_weights::load_weights(&run, &parameters(&module)?, averaged)
        };
        py.detach(load).map_err(super::error::raise)
    }
}
