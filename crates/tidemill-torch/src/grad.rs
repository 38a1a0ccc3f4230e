//! Gradients in memory of our choosing: autograd adds into a gradient that is already there, so a
//! parameter whose gradient is a view of a flat buffer fills that buffer without a copy.

use crate::{Error, ffi};
use tch::Tensor;

/// Makes `grad` (same shape, dtype and device) the gradient of `param`. Backward passes add into it.
///
/// # Errors
/// If libtorch refuses the pair.
pub fn set_grad(param: &Tensor, grad: &Tensor) -> Result<(), Error> {
    // SAFETY: both tensors live until the call returns; the shim stores its own reference.
    let answer = unsafe { ffi::tm_set_grad(param.as_ptr().cast_mut(), grad.as_ptr().cast_mut()) };
    ffi::check("set_grad", answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn backward_adds_into_the_given_buffer() {
        let flat = Tensor::ones([4], (Kind::Float, Device::Cpu));
        let param = Tensor::from_slice(&[2f32, 3.0]).set_requires_grad(true);
        set_grad(&param, &flat.narrow(0, 1, 2)).unwrap();
        (&param * &param).sum(Kind::Float).backward();
        assert_eq!(Vec::<f32>::try_from(flat).unwrap(), [1.0, 5.0, 7.0, 1.0]);
    }
}
