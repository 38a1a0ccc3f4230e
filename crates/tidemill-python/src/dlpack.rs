//! Passes tensors to Python through DLPack (<https://dmlc.github.io/dlpack/latest/c_api.html>)
//! without copies. The memory is released when its last consumer releases it.
#![expect(unsafe_code, reason = "DLPack is a C interface")]

use std::ffi::{CStr, c_void};
use std::ptr;

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use tidemill_store::Dtype;

/// The name of a capsule that no consumer has taken. A consumer renames the capsule.
const UNCONSUMED: &CStr = c"dltensor";

/// `kDLCPU`, device 0.
const CPU: Device = Device { kind: 1, id: 0 };

/// `kDLInt`.
const INT: u8 = 0;

/// `kDLFloat`.
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
    /// Null means row-major and contiguous.
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DLManagedTensor {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A managed tensor together with its shape and its memory.
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
    /// The tensor's shape.
    #[pyo3(get)]
    shape: Vec<i64>,
}

impl Tensor {
    /// A tensor of `bytes`, whose length must match `shape`.
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

    /// A DLPack capsule. The consumer must not modify the values.
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
            return Err(PyBufferError::new_err(
                "the tensor is on the CPU and cannot be copied here; copy the imported tensor instead",
            ));
        }
        wrap_in_capsule(py, make_managed_tensor(self.bytes.clone(), self.dtype, self.shape.clone()))
    }
}

/// A capsule that shares the memory of a libtorch tensor.
pub fn to_capsule<'py>(py: Python<'py>, tensor: &tch::Tensor) -> PyResult<Bound<'py, PyAny>> {
    let managed = tidemill_torch::to_dlpack(tensor).map_err(|e| PyBufferError::new_err(e.to_string()))?;
    wrap_in_capsule(py, managed.as_ptr().cast())
}

/// Wraps a managed tensor into a capsule, which owns it.
fn wrap_in_capsule(py: Python<'_>, managed: *mut DLManagedTensor) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the name lives as long as the program, and `release` matches the capsule's content.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), UNCONSUMED.as_ptr(), Some(release));
        if capsule.is_null() {
            free(managed);
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Builds a managed tensor that owns `bytes`. Its deleter frees it.
fn make_managed_tensor(bytes: Bytes, dtype: DataType, shape: Vec<i64>) -> *mut DLManagedTensor {
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

/// Frees a tensor of [`make_managed_tensor`]. Its last owner calls this once.
unsafe extern "C" fn delete(managed: *mut DLManagedTensor) {
    drop(unsafe { Box::from_raw((*managed).context.cast::<Owned>()) });
}

/// Frees a managed tensor of any producer.
unsafe fn free(managed: *mut DLManagedTensor) {
    unsafe {
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    }
}

/// The destructor of a capsule. If a consumer has taken the tensor, the consumer frees it.
unsafe extern "C" fn release(capsule: *mut ffi::PyObject) {
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNCONSUMED.as_ptr()) == 1 {
            free(ffi::PyCapsule_GetPointer(capsule, UNCONSUMED.as_ptr()).cast());
        }
    }
}
