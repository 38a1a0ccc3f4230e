//! Tensors handed to Python through DLPack, without copies: <https://dmlc.github.io/dlpack/latest/c_api.html>. The memory
//! goes back to where it came from when the last one who took it lets go.
#![expect(unsafe_code, reason = "DLPack is a C interface")]

use std::ffi::{CStr, c_void};
use std::ptr;

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use tidemill_store::Dtype;

/// The name of a capsule that nobody has taken yet; whoever takes it gives it another.
const NAME: &CStr = c"dltensor";

/// `kDLCPU`, and the only one of its kind.
const CPU: Device = Device { kind: 1, id: 0 };

/// `kDLInt`
const INT: u8 = 0;

/// `kDLFloat`
const FLOAT: u8 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    /// Null: row-major, without gaps.
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DLManagedTensor {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// What a capsule points to, with what it points to in turn.
struct Owned {
    managed: DLManagedTensor,
    shape: Vec<i64>,
    _bytes: Bytes,
}

/// Values in row-major order, for `torch.from_dlpack` and `numpy.from_dlpack`.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Tensor {
    bytes: Bytes,
    dtype: DataType,
    /// Of all values together.
    #[pyo3(get)]
    shape: Vec<i64>,
}

impl Tensor {
    /// Of bytes that have just this shape.
    pub fn new(bytes: Bytes, dtype: Dtype, shape: Vec<i64>) -> Self {
        let dtype = match dtype.decoded() {
            Dtype::I32 => DataType { code: INT, bits: 32, lanes: 1 },
            _ => DataType { code: FLOAT, bits: 16, lanes: 1 },
        };
        debug_assert_eq!(bytes.len() as i64, i64::from(dtype.bits / 8) * shape.iter().product::<i64>());
        Self { bytes, dtype, shape }
    }
}

#[pymethods]
impl Tensor {
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU.kind, CPU.id)
    }

    /// A capsule; the values are not to be written to.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, max_version);
        if dl_device.is_some_and(|device| device != (CPU.kind, CPU.id)) || copy == Some(true) {
            return Err(PyBufferError::new_err("it is on the CPU and is not copied; copy what comes of it"));
        }
        enclose(py, managed(self.bytes.clone(), self.dtype, self.shape.clone()))
    }
}

/// A capsule of a tensor of libtorch's, which shares its memory.
pub fn capsule<'py>(py: Python<'py>, tensor: &tch::Tensor) -> PyResult<Bound<'py, PyAny>> {
    let managed = tidemill_torch::to_dlpack(tensor).map_err(|e| PyBufferError::new_err(e.to_string()))?;
    enclose(py, managed.as_ptr().cast())
}

/// Takes a managed tensor over.
fn enclose(py: Python<'_>, managed: *mut DLManagedTensor) -> PyResult<Bound<'_, PyAny>> {
    // Safe: the name lives as long as the program, and `release` fits what the capsule holds.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(release));
        if capsule.is_null() {
            free(managed);
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

fn managed(bytes: Bytes, dtype: DataType, shape: Vec<i64>) -> *mut DLManagedTensor {
    let data = bytes.as_ptr().cast_mut().cast();
    let tensor = DLTensor {
        data,
        device: CPU,
        ndim: shape.len() as i32,
        dtype,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensor { tensor, context: ptr::null_mut(), deleter: Some(delete) };
    let owned = Box::leak(Box::new(Owned { managed, shape, _bytes: bytes }));
    owned.managed.tensor.shape = owned.shape.as_mut_ptr();
    owned.managed.context = ptr::from_mut(owned).cast();
    &raw mut owned.managed
}

/// Frees what [`managed`] made; called once, by the last one to hold it.
unsafe extern "C" fn delete(managed: *mut DLManagedTensor) {
    drop(unsafe { Box::from_raw((*managed).context.cast::<Owned>()) });
}

/// Frees a managed tensor, whoever made it.
unsafe fn free(managed: *mut DLManagedTensor) {
    unsafe {
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    }
}

/// Called when a capsule dies. If somebody took what it held, that one frees it.
unsafe extern "C" fn release(capsule: *mut ffi::PyObject) {
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            free(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
