//! A denoiser of the user's own, a `torch.nn.Module`: Python runs it, and the trainer has its parameters.
//! `python/tidemill/denoiser.py` is what this asks.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tidemill::Error;
use tidemill_models::{Denoiser, Params, SampleShape, TrainableDenoiser};
use tidemill_torch::{guard, remove_grad_hook};

use crate::dlpack;

/// The first exception that the module has raised, which is worth more than any error that comes of it.
pub type Raised = Arc<Mutex<Option<PyErr>>>;

/// A `torch.nn.Module`, while it is trained.
pub struct PythonDenoiser {
    /// A `tidemill.denoiser.Adapter`.
    python: Py<PyAny>,
    params: Params,
    frozen: BTreeSet<String>,
    raised: Raised,
}

/// The parameters of a `torch.nn.Module`, wherever it is.
///
/// # Errors
/// [`Error::Refused`] if it is none, or has what no checkpoint holds.
pub fn parameters(module: &Py<PyAny>) -> Result<Params, Error> {
    asking(|py| named(&opened(py, module)?, Device::Cpu)).map_err(Error::Refused)
}

impl PythonDenoiser {
    /// Takes a `torch.nn.Module` and moves it to `device`.
    ///
    /// # Errors
    /// [`Error::Refused`] if it cannot be trained.
    pub fn new(module: &Py<PyAny>, device: Device, raised: Raised) -> Result<Self, Error> {
        let open = |py: Python<'_>| {
            let python = opened(py, module)?;
            python.call_method1("prepare", (name_of(device),))?;
            let frozen = python.call_method0("frozen")?.extract()?;
            let params = named(&python, device)?;
            Ok(Self { python: python.unbind(), params, frozen, raised })
        };
        asking(open).map_err(Error::Refused)
    }

    /// Asks Python; what it raises is kept.
    fn ask<T>(&self, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
        Python::attach(|py| {
            call(py).map_err(|error| {
                let message = error.to_string();
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                message
            })
        })
    }
}

impl Denoiser for PythonDenoiser {
    fn denoise(&self, sample: &Tensor, timesteps: &Tensor, text: &Tensor) -> Tensor {
        // It does not say which of them come next.
        self.params.run_pre_forward_hook("");
        let call = |py: Python<'_>| {
            let inputs =
                (dlpack::capsule(py, sample)?, dlpack::capsule(py, timesteps)?, dlpack::capsule(py, text)?);
            tensor_of(&self.python.bind(py).call1(inputs)?)
        };
        // As an operation of libtorch's that fails: whoever runs a step guards it.
        self.ask(call).unwrap_or_else(|message| resume_unwind(Box::new(message)))
    }
}

impl TrainableDenoiser for PythonDenoiser {
    fn params(&self) -> &Params {
        &self.params
    }

    fn frozen_parameters(&self) -> BTreeSet<String> {
        self.frozen.clone()
    }

    fn identity(&self) -> (&'static str, Value) {
        let name = self.ask(|py| self.python.getattr(py, "name")?.extract::<String>(py));
        ("denoiser", name.map_or(Value::Null, Value::String))
    }

    fn forward_flops(&self, row: SampleShape) -> Result<u64, tidemill_models::Error> {
        let count = |py: Python<'_>| {
            self.python.call_method1(py, "forward_flops", (row.latents, row.text))?.extract::<u64>(py)
        };
        asking(count).map_err(tidemill_models::Error::Denoiser)
    }

    fn set_gradient_checkpointing(&mut self, recompute: bool) -> Result<(), tidemill_models::Error> {
        if !recompute {
            return Ok(());
        }
        let set = |py: Python<'_>| self.python.call_method0(py, "checkpoint_gradients").map(drop);
        asking(set).map_err(tidemill_models::Error::Denoiser)
    }
}

impl Drop for PythonDenoiser {
    /// Gives the parameters back to Python: f32, with memory of their own, and gradients kept with them.
    fn drop(&mut self) {
        self.params.run_pre_forward_hook("");
        for (name, parameter) in self.params.named_parameters() {
            let back = || {
                let own = tch::no_grad(|| parameter.detach().to_kind(Kind::Float).copy());
                parameter.shallow_clone().set_data(&own);
                let _ = parameter.set_requires_grad(!self.frozen.contains(&name));
            };
            // Without memory for it, it stays what it is.
            let _ = guard(back).and_then(|()| remove_grad_hook(&parameter));
        }
    }
}

/// Asks Python; gives what an exception says.
fn asking<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
    Python::attach(|py| call(py).map_err(|error| error.value(py).to_string()))
}

/// A `tidemill.denoiser.Adapter` of a `torch.nn.Module`.
fn opened<'py>(py: Python<'py>, module: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
    py.import("tidemill.denoiser")?.call_method1("Adapter", (module,))
}

fn named(python: &Bound<'_, PyAny>, device: Device) -> PyResult<Params> {
    let parameters: Vec<(String, Bound<'_, PyAny>)> = python.call_method0("parameters")?.extract()?;
    let tensors = parameters.into_iter().map(|(name, parameter)| Ok((name, tensor_of(&parameter)?)));
    Ok(Params::from_named(device, tensors.collect::<PyResult<_>>()?))
}

/// As `torch.device` takes it.
fn name_of(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".into(),
    }
}

/// A `torch.Tensor`, which Python and Rust then share.
#[expect(unsafe_code, reason = "tensors are known to libtorch by their address")]
fn tensor_of(tensor: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let address: usize = tensor.getattr("_cdata")?.extract()?;
    // Safe: it is a tensor's, which lives as long as `tensor`.
    unsafe { tidemill_torch::tensor_from_python(address) }.map_err(crate::error::raise_torch)
}
