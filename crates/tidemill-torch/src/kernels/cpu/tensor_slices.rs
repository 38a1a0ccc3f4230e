//! Tensors on the CPU as slices of Rust.

use tch::{Device, Kind, Tensor};

use super::element::Element;
use crate::threads::DisjointSlices;
use crate::{Error, guard};

/// Whether the kernels for CPUs take such a tensor.
pub fn is_supported(x: &Tensor) -> bool {
    x.device() == Device::Cpu && matches!(x.kind(), Kind::Float | Kind::BFloat16) && x.numel() > 0
}

/// The elements of a contiguous tensor on the CPU with the dtype of `T`.
pub fn as_slice<T: Element>(tensor: &Tensor) -> &[T] {
    assert!(tensor.is_contiguous() && tensor.kind() == T::KIND && tensor.device() == Device::Cpu);
    // SAFETY: the tensor has that many elements of that type one behind the other, and outlives the
    // slice.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// [`as_slice`] of a tensor that nobody else has, to be written to.
pub fn as_mut_slice<T: Element>(tensor: &mut Tensor) -> &mut [T] {
    let length = as_slice::<T>(tensor).len();
    // SAFETY: `as_slice` checked the elements, and nobody else has the tensor.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), length) }
}

/// [`as_slice`] of a tensor that threads write to, each to elements of its own.
pub fn as_disjoint_slices<T: Element>(tensor: &Tensor) -> DisjointSlices<'_, T> {
    let length = as_slice::<T>(tensor).len();
    // SAFETY: `as_slice` checked that the tensor has that many elements; it outlives the result.
    unsafe { DisjointSlices::from_raw(tensor.data_ptr().cast(), length) }
}

/// Copies the values of a small tensor on the CPU, as f32.
pub fn to_f32_vec(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    let values = guard(|| tensor.detach().to_kind(Kind::Float).contiguous())?;
    Ok(as_slice::<f32>(&values).to_vec())
}
