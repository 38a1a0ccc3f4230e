//! The native half of the Python package `tidemill`: the command line and the verbs, the two stages over Arrow's C
//! data interface, and the training stream. Everything that is work runs without the GIL.

mod batch;
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
    use std::sync::Arc;

    use tidemill::cli;
    use tidemill::online::Elsewhere;
    use tidemill_train::StepMetrics;

    use super::online::Asked;
    use super::{Py, PyAny, PyResult, Python, pyfunction};

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

    /// Runs a command line, program name first, and returns the exit code.
    #[pyfunction]
    fn main(py: Python<'_>, argv: Vec<String>) -> u8 {
        py.detach(|| cli::main(argv))
    }

    /// Runs one verb with its arguments and returns its result as JSON.
    #[pyfunction]
    fn call(py: Python<'_>, arguments: Vec<String>) -> PyResult<String> {
        let result = py.detach(|| cli::call(arguments)).map_err(super::error::raise)?;
        Ok(result.to_string())
    }

    /// Trains, as the verb `train` does with these arguments. `listener` is called with each line of metrics as JSON, on
    /// every rank; if it raises, training ends after a checkpoint. `encoders` has rows encoded elsewhere.
    #[pyfunction]
    fn train(
        py: Python<'_>,
        arguments: Vec<String>,
        listener: Py<PyAny>,
        encoders: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let elsewhere = encoders.map(|encoders| Arc::new(Asked(encoders)) as Arc<dyn Elsewhere>);
        let mut raised = None;
        let result = py.detach(|| {
            let mut hear = |metrics: &StepMetrics| {
                let line = serde_json::to_string(metrics).unwrap_or_default();
                let heard = Python::attach(|py| listener.call1(py, (line,)).map(drop));
                raised = heard.err().or_else(|| raised.take());
                raised.is_none()
            };
            cli::call_train(arguments, &mut hear, elsewhere)
        });
        match raised {
            Some(error) => Err(error),
            None => Ok(result.map_err(super::error::raise)?.to_string()),
        }
    }
}
