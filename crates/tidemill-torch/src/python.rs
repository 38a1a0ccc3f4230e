//! Tensors that Rust and PyTorch in Python share, without copies.

use std::ffi::c_void;
use std::ptr::NonNull;

use tch::Tensor;

use crate::{Error, ffi};

/// The tensor of Python's at this address, which is its `_cdata`: with its data, its gradient and its place in autograd's
/// graph.
///
/// # Errors
/// If libtorch refuses it.
///
/// # Safety
/// It must be the `_cdata` of a `torch.Tensor` that lives until this returns, in a process with one libtorch.
pub unsafe fn tensor_from_python(address: usize) -> Result<Tensor, Error> {
    // SAFETY: as the caller promises, there is a tensor, of which the shim takes a share.
    ffi::make("tensor_from_python", |out| unsafe { ffi::tm_from_impl(address as *mut c_void, out) })
}

/// A `DLManagedTensor` of a tensor without gradient, which shares its memory: whoever takes it calls its deleter once.
///
/// # Errors
/// If DLPack has no name for its dtype or device, or it requires a gradient.
pub fn to_dlpack(tensor: &Tensor) -> Result<NonNull<c_void>, Error> {
    let mut out = std::ptr::null_mut();
    // SAFETY: the tensor lives until the call returns.
    ffi::check("to_dlpack", unsafe { ffi::tm_to_dlpack(tensor.as_ptr().cast_mut(), &raw mut out) })?;
    NonNull::new(out).ok_or_else(|| Error::Torch("there is no DLPack tensor of it".into()))
}
