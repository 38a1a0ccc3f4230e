//! Tensors that Rust and PyTorch in Python share, without copies.

use std::ffi::c_void;
use std::ptr::NonNull;

use tch::Tensor;

use crate::Error;
use crate::ffi::{self, as_raw};

/// The tensor of Python's whose `_cdata` is `address`, with its data, its gradient and its node in
/// autograd's graph.
///
/// # Errors
/// If libtorch refuses it.
///
/// # Safety
/// `address` must be the `_cdata` of a `torch.Tensor` that lives until this returns, in a process
/// with one libtorch.
pub unsafe fn tensor_from_python(address: usize) -> Result<Tensor, Error> {
    // SAFETY: the caller promises that there is a tensor; the shim takes a reference to it.
    ffi::make_tensor("tensor_from_python", |out| unsafe {
        ffi::tm_tensor_from_impl(address as *mut c_void, out)
    })
}

/// A `DLManagedTensor` that shares the memory of a tensor without gradient. Whoever takes it calls
/// its deleter once.
///
/// # Errors
/// If DLPack does not support its dtype or device, or it requires a gradient.
pub fn to_dlpack(tensor: &Tensor) -> Result<NonNull<c_void>, Error> {
    let mut out = std::ptr::null_mut();
    // SAFETY: the tensor lives until the call returns.
    ffi::check("to_dlpack", unsafe { ffi::tm_to_dlpack(as_raw(tensor), &raw mut out) })?;
    NonNull::new(out).ok_or_else(|| Error::Torch("libtorch made no DLPack tensor".into()))
}
