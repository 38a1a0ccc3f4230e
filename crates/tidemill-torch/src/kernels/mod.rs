//! Operations on the CPU that libtorch does in several passes over memory, and keeps more for the backward pass than it takes: here
//! each is one pass, in f32 whatever the tensors hold. For NVIDIA GPUs there are kernels, too (`gpu/`). Where there is none,
//! libtorch's operations do the same.

mod adamw;
mod channels_last;
mod element;
mod geglu;
mod gpu;
mod group_norm;
mod layer_norm;
mod math;
mod shifted;

pub use adamw::{adamw_on_cpu, squared_norm_on_cpu};
pub use geglu::geglu;
pub use gpu::{adamw_on_gpu, kernel_launch_count, prefers_channels_last, to_preferred_memory_format};
pub use group_norm::GroupNorm;
pub use layer_norm::add_layer_norm;
pub use shifted::add_channel_bias;

use pulp::{Arch, NullaryFnOnce};
use tch::{Device, Kind, Tensor};

use crate::guard::wants_gradients;
use crate::parallel::Parts;
use crate::{Error, guard};
use element::Element;

/// Whether there are kernels for such a tensor.
pub fn has_kernels(x: &Tensor) -> bool {
    x.device() == Device::Cpu && matches!(x.kind(), Kind::Float | Kind::BFloat16) && x.numel() > 0
}

/// Runs what is compiled for several instruction sets for the best that this CPU has.
fn vectorised<K: NullaryFnOnce>(kernel: K) -> K::Output {
    Arch::new().dispatch(kernel)
}

/// The elements of a contiguous tensor on the CPU, which holds `T`.
fn elements<T: Element>(tensor: &Tensor) -> &[T] {
    assert!(tensor.is_contiguous() && tensor.kind() == T::KIND && tensor.device() == Device::Cpu);
    // SAFETY: the tensor has that many elements of that type one behind the other, and lives as long.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// As [`elements`], of a tensor that nobody else has.
fn elements_mut<T: Element>(tensor: &mut Tensor) -> &mut [T] {
    let length = elements::<T>(tensor).len();
    // SAFETY: as above, and nobody else has the tensor.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), length) }
}

/// As [`elements`], of which threads change parts.
fn parts<T: Element>(tensor: &Tensor) -> Parts<'_, T> {
    let length = elements::<T>(tensor).len();
    // SAFETY: the tensor has that many, and lives as long.
    unsafe { Parts::at(tensor.data_ptr().cast(), length) }
}

/// [N, C, H, W] as [N, H, W, C], contiguous; without a copy if it lies so.
fn channels_last(x: &Tensor) -> Tensor {
    x.permute([0, 2, 3, 1]).contiguous()
}

/// [N, H, W, C] as [N, C, H, W].
fn images(x: &Tensor) -> Tensor {
    x.permute([0, 3, 1, 2])
}

/// A tensor as f32, contiguous, where it is.
fn values_on(tensor: &Tensor) -> Result<Tensor, Error> {
    guard(|| tensor.detach().to_kind(Kind::Float).contiguous())
}

/// The values of a small tensor on the CPU.
fn values(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    Ok(elements::<f32>(&values_on(tensor)?).to_vec())
}

/// An uninitialised tensor like `x`, contiguous.
fn empty_like(x: &Tensor) -> Result<Tensor, Error> {
    guard(|| Tensor::empty(x.size(), (x.kind(), x.device())))
}

/// A multiple of the elements that the widest registers hold: as many sums are kept side by side.
const LANES: usize = 32;

/// Sums what `value` makes of each element.
#[inline(always)]
fn sum<T: Element>(x: &[T], value: impl Fn(f32) -> f32) -> f32 {
    sum_of_pairs(x, x, |x, _| value(x))
}

/// Sums what `value` makes of the elements of two slices, side by side.
#[inline(always)]
fn sum_of_pairs<A: Element, B: Element>(a: &[A], b: &[B], value: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let ((some_a, rest_a), (some_b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in some_a.iter().zip(some_b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += value(a.get(), b.get());
        }
    }
    // Added to the lanes, of which there would be a number that compilers do not know, the rest would keep them out of registers.
    let rest = rest_a.iter().zip(rest_b).map(|(a, b)| value(a.get(), b.get()));
    lanes.iter().sum::<f32>() + rest.sum::<f32>()
}
