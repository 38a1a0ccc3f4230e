//! The user's denoiser, a `torch.nn.Module`. Python computes it; the trainer updates its
//! parameters. The calls go to `Adapter` in `python/tidemill/denoiser.py`.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tidemill::Error;
use tidemill_models::{Conditions, Denoiser, GradientCheckpointing, Params, SampleShape, TrainableDenoiser};
use tidemill_torch::{guard, remove_grad_hook};

use crate::dlpack;

/// The first exception raised in Python. It explains more than the errors that follow from it.
pub type FirstException = Arc<Mutex<Option<PyErr>>>;

/// Keeps an exception unless there is an earlier one.
pub fn keep_first(exception: &FirstException, error: PyErr) {
    exception.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
}

/// A `torch.nn.Module` that is being trained.
pub struct PythonDenoiser {
    /// The module's `tidemill.denoiser.Adapter`.
    adapter: Py<PyAny>,
    params: Params,
    frozen: BTreeSet<String>,
    exception: FirstException,
}

/// The parameters of a `torch.nn.Module` on any device.
///
/// # Errors
/// [`Error::Refused`] if the object is not a module, or has state that checkpoints do not hold.
pub fn read_parameters(module: &Py<PyAny>) -> Result<Params, Error> {
    call_python(|py| named_parameters(&open_adapter(py, module)?, Device::Cpu)).map_err(Error::Refused)
}

impl PythonDenoiser {
    /// Prepares a `torch.nn.Module` for training, and moves it to `device`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the module cannot be trained.
    pub fn new(module: &Py<PyAny>, device: Device, exception: FirstException) -> Result<Self, Error> {
        let open = |py: Python<'_>| {
            let adapter = open_adapter(py, module)?;
            adapter.call_method1("prepare", (to_torch_device(device),))?;
            let frozen = adapter.call_method0("frozen")?.extract()?;
            let params = named_parameters(&adapter, device)?;
            Ok(Self { adapter: adapter.unbind(), params, frozen, exception })
        };
        call_python(open).map_err(Error::Refused)
    }

    /// Calls Python, and keeps the first exception. The error is the exception's message.
    fn call_and_keep_exception<T>(&self, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
        Python::attach(|py| {
            call(py).map_err(|error| {
                let message = error.to_string();
                keep_first(&self.exception, error);
                message
            })
        })
    }
}

impl Denoiser for PythonDenoiser {
    fn denoise(&self, sample: &Tensor, timesteps: &Tensor, conditions: &Conditions) -> Tensor {
        // The module does not announce which parameters it uses next, so all must be ready.
        self.params.run_pre_forward_hook("");
        let call = |py: Python<'_>| {
            let Conditions { text, pooled, time_ids } = conditions;
            let optional = |tensor: &Option<Tensor>| {
                tensor.as_ref().map(|tensor| dlpack::to_capsule(py, tensor)).transpose()
            };
            let inputs = (
                dlpack::to_capsule(py, sample)?,
                dlpack::to_capsule(py, timesteps)?,
                dlpack::to_capsule(py, text)?,
                optional(pooled)?,
                optional(time_ids)?,
            );
            to_tch_tensor(&self.adapter.bind(py).call1(inputs)?)
        };
        // A panic, like a failing libtorch operation: the caller of a step catches it.
        self.call_and_keep_exception(call).unwrap_or_else(|message| resume_unwind(Box::new(message)))
    }
}

impl TrainableDenoiser for PythonDenoiser {
    fn params(&self) -> &Params {
        &self.params
    }

    fn frozen_parameters(&self) -> BTreeSet<String> {
        self.frozen.clone()
    }

    fn may_wait_for_device(&self) -> bool {
        // What a user's module does is not known.
        true
    }

    fn identity(&self) -> (&'static str, Value) {
        let name = self.call_and_keep_exception(|py| self.adapter.getattr(py, "name")?.extract::<String>(py));
        ("denoiser", name.map_or(Value::Null, Value::String))
    }

    fn forward_flops(&self, row: SampleShape) -> Result<u64, tidemill_models::Error> {
        let count = |py: Python<'_>| {
            self.adapter
                .call_method1(py, "forward_flops", (row.latents, row.text, row.pooled, row.has_time_ids))?
                .extract::<u64>(py)
        };
        call_python(count).map_err(tidemill_models::Error::Denoiser)
    }

    fn set_gradient_checkpointing(
        &mut self,
        mode: GradientCheckpointing,
    ) -> Result<(), tidemill_models::Error> {
        match mode {
            GradientCheckpointing::Off => return Ok(()),
            GradientCheckpointing::Selective => {
                let problem = "a PyTorch module decides itself what it computes again: set true or false";
                return Err(tidemill_models::Error::Denoiser(problem.into()));
            }
            GradientCheckpointing::Full => {}
        }
        let set = |py: Python<'_>| self.adapter.call_method0(py, "checkpoint_gradients").map(drop);
        call_python(set).map_err(tidemill_models::Error::Denoiser)
    }
}

impl Drop for PythonDenoiser {
    /// Returns the parameters to Python: in f32, with their own memory and their usual
    /// `requires_grad`, and without the trainer's gradient hooks.
    fn drop(&mut self) {
        self.params.run_pre_forward_hook("");
        for (name, parameter) in self.params.named_parameters() {
            let restore = || {
                let own = tch::no_grad(|| parameter.detach().to_kind(Kind::Float).copy());
                parameter.shallow_clone().set_data(&own);
                let _ = parameter.set_requires_grad(!self.frozen.contains(&name));
            };
            // If there is no memory for the copy, the parameter stays as it is.
            let _ = guard(restore).and_then(|()| remove_grad_hook(&parameter));
        }
    }
}

/// Calls Python. The error is the exception's message.
fn call_python<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
    Python::attach(|py| call(py).map_err(|error| error.value(py).to_string()))
}

/// Creates the `tidemill.denoiser.Adapter` of a `torch.nn.Module`.
fn open_adapter<'py>(py: Python<'py>, module: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
    py.import("tidemill.denoiser")?.call_method1("Adapter", (module,))
}

/// The module's parameters by name, as tensors that share memory with Python.
fn named_parameters(adapter: &Bound<'_, PyAny>, device: Device) -> PyResult<Params> {
    let parameters: Vec<(String, Bound<'_, PyAny>)> = adapter.call_method0("parameters")?.extract()?;
    let tensors = parameters.into_iter().map(|(name, parameter)| Ok((name, to_tch_tensor(&parameter)?)));
    Ok(Params::from_named(device, tensors.collect::<PyResult<_>>()?))
}

/// The device's name for `torch.device`.
fn to_torch_device(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".into(),
    }
}

/// The tensor of a `torch.Tensor`. Python and Rust share its memory.
#[expect(unsafe_code, reason = "Python passes tensors by address")]
fn to_tch_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let address: usize = tensor.getattr("_cdata")?.extract()?;
    // SAFETY: `_cdata` is the address of a libtorch tensor that lives as long as `tensor`.
    unsafe { tidemill_torch::tensor_from_python(address) }.map_err(crate::error::raise_torch)
}
