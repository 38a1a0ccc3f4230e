//! The memory of a tensor, freed and allocated again while the tensor and its views stay as they are
//! (`UntypedStorage.resize_` in Python).

use tch::Tensor;

use crate::Error;
use crate::ffi::{self, as_raw};

/// Frees the memory of `tensor` and of all tensors that share it. Who reads or writes their values before
/// [`allocate_storage`] crashes. On a GPU, operations that are in the current stream still have the memory.
///
/// # Errors
/// If libtorch fails.
pub fn free_storage(tensor: &Tensor) -> Result<(), Error> {
    // SAFETY: the tensor lives until the call returns.
    ffi::check("free_storage", unsafe { ffi::tm_free_storage(as_raw(tensor)) })
}

/// Allocates the memory of `tensor`, which must be contiguous and begin at the start of its memory, if
/// [`free_storage`] has freed it. Values are undefined.
///
/// # Errors
/// If there is not enough memory.
pub fn allocate_storage(tensor: &Tensor) -> Result<(), Error> {
    // SAFETY: the tensor lives until the call returns.
    ffi::check("allocate_storage", unsafe { ffi::tm_allocate_storage(as_raw(tensor)) })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, no_grad};

    use super::*;

    /// Autograd keeps a weight for the backward pass, which may be freed until then.
    #[test]
    fn gradients_need_weights_only_at_their_use() {
        let bucket = Tensor::from_slice(&[1.0f32, 2.0, 3.0]);
        let values = bucket.copy();
        let mut weight = Tensor::zeros([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        weight.set_data(&bucket.narrow(0, 1, 2));
        let x = Tensor::from_slice(&[5.0f32, 7.0]).set_requires_grad(true);
        let product = &x * &weight;
        free_storage(&bucket).unwrap();
        allocate_storage(&bucket).unwrap();
        no_grad(|| bucket.shallow_clone().copy_(&values));
        allocate_storage(&bucket).unwrap();
        assert_eq!(bucket, values, "allocated twice");
        product.sum(Kind::Float).backward();
        assert_eq!(Vec::<f32>::try_from(&x.grad()).unwrap(), [2.0, 3.0]);
        assert_eq!(Vec::<f32>::try_from(&weight.grad()).unwrap(), [5.0, 7.0]);
    }
}
