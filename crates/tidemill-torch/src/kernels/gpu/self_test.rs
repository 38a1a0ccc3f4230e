//! The comparison of kernels with libtorch's operations before their first use.

use tch::{Device, Kind, Tensor};

use crate::{Error, guard};

/// f32 numbers to test kernels on: `sin(0.7 i) * scale + shift`. They draw nothing from the random
/// generator of a training run.
pub fn test_numbers(device: usize, size: &[i64], scale: f64, shift: f64) -> Result<Tensor, Error> {
    let count: i64 = size.iter().product();
    let options = (Kind::Float, Device::Cuda(device));
    guard(|| ((Tensor::arange(count, options) * 0.7).sin() * scale + shift).reshape(size))
}

/// A copy of `tensor` in this dtype that requires a gradient.
pub fn to_leaf(tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
    guard(|| tensor.to_kind(kind).detach().copy().set_requires_grad(true))
}

/// The outputs, and the gradients of `leaves` for the sum of `loss`.
pub fn outputs_and_grads(
    outputs: &[&Tensor],
    leaves: &[Tensor],
    loss: impl FnOnce() -> Tensor,
) -> Result<Vec<Tensor>, Error> {
    guard(|| {
        let grads = Tensor::run_backward(&[loss().sum(Kind::Float)], leaves, false, false);
        outputs.iter().map(|output| output.detach()).chain(grads).collect()
    })
}

/// Checks that the results of kernels for this dtype are close to those of libtorch.
///
/// # Errors
/// If a result differs by more than rounding, or is not a number.
pub fn check_close(kind: Kind, ours: &[Tensor], theirs: &[Tensor]) -> Result<(), Error> {
    let tolerance = if kind == Kind::Float { 1e-5 } else { 1e-2 };
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let relative_error = || {
            let [ours, theirs] = [ours, theirs].map(|tensor| tensor.to_kind(Kind::Float));
            ((ours - &theirs).norm() / theirs.norm()).double_value(&[])
        };
        let error = guard(relative_error)?;
        if error.is_nan() || error > tolerance {
            let message = format!("result {i} differs from libtorch's by {error:.1e} ({kind:?})");
            return Err(Error::Torch(message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_differ_or_are_nan_are_refused() {
        let theirs = Tensor::from_slice(&[1f32, -2.0, 3.0]);
        let with_nan = Tensor::from_slice(&[1f32, f32::NAN, 3.0]);
        let moved = |by: f64| &theirs + by;
        for (kind, near, far) in [(Kind::Float, 1e-6, 1e-2), (Kind::BFloat16, 1e-3, 1e-1)] {
            // Each behind a result that is right.
            let is_close = |ours: &Tensor| {
                let [ours, theirs] = [ours, &theirs].map(|tensor| tensor.to_kind(kind));
                check_close(kind, &[theirs.shallow_clone(), ours], &[theirs.shallow_clone(), theirs]).is_ok()
            };
            assert!(is_close(&theirs) && is_close(&moved(near)), "{kind:?}");
            assert!(!is_close(&moved(far)) && !is_close(&with_nan), "{kind:?}");
        }
    }
}
