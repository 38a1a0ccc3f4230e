//! Vectorised code: runs kernels that are compiled for several instruction sets, and sums.

use pulp::{Arch, NullaryFnOnce};

use super::element::Element;

/// Runs a kernel as it was compiled for the best instruction set that this CPU has.
pub fn run_vectorised<K: NullaryFnOnce>(kernel: K) -> K::Output {
    Arch::new().dispatch(kernel)
}

/// How many partial sums are kept side by side: a multiple of the elements that the widest
/// registers hold.
const PARTIAL_SUMS: usize = 32;

/// Sums `value` of each element.
#[inline(always)]
pub fn sum<T: Element>(x: &[T], value: impl Fn(f32) -> f32) -> f32 {
    sum_of_pairs(x, x, |x, _| value(x))
}

/// Sums `value` of the elements of two slices, side by side.
#[inline(always)]
pub fn sum_of_pairs<A: Element, B: Element>(a: &[A], b: &[B], value: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0f32; PARTIAL_SUMS];
    let ((chunks_a, rest_a), (chunks_b, rest_b)) =
        (a.as_chunks::<PARTIAL_SUMS>(), b.as_chunks::<PARTIAL_SUMS>());
    for (a, b) in chunks_a.iter().zip(chunks_b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += value(a.to_f32(), b.to_f32());
        }
    }
    // The rest is summed on its own: a loop of unknown length over the partial sums would keep
    // these out of registers.
    let rest = rest_a.iter().zip(rest_b).map(|(a, b)| value(a.to_f32(), b.to_f32()));
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}
