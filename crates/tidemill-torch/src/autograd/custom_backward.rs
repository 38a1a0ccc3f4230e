//! Operations of Rust's in autograd's graph (`torch.autograd.Function` in Python).

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::ffi::{self, as_raw};
use crate::{Error, guard};

/// The backward pass of an operation.
pub trait Backward {
    /// Computes the gradients of the operation's inputs, in their order, from the saved tensors and
    /// the gradients of its outputs. A tensor that is not defined stands for an input without a
    /// gradient.
    ///
    /// # Errors
    /// If libtorch fails.
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error>;
}

/// Connects `outputs`, which autograd does not know yet, with the `inputs` that they were computed
/// from. Autograd keeps `saved` until the backward pass; no output may be among them. Where no
/// gradients are wanted, nothing is kept.
///
/// # Errors
/// If libtorch fails.
pub fn attach_backward<B: Backward>(
    operation: B,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: &[&Tensor],
) -> Result<(), Error> {
    let context = Box::into_raw(Box::new(operation)).cast();
    let [outputs, inputs, saved] = [outputs, inputs, saved]
        .map(|tensors| tensors.iter().map(|tensor| as_raw(tensor)).collect::<Vec<*mut C_tensor>>());
    // SAFETY: the tensors live until the call returns; the shim owns `context` from now on, and
    // frees it by `drop_operation`.
    let error = unsafe {
        ffi::tm_attach_backward(
            outputs.as_ptr(),
            outputs.len(),
            inputs.as_ptr(),
            inputs.len(),
            saved.as_ptr(),
            saved.len(),
            context,
            call_backward::<B>,
            drop_operation::<B>,
        )
    };
    ffi::check("attach_backward", error)
}

/// Runs a backward pass for the shim: writes the gradients to `input_grads`. On failure it returns
/// false and writes the error to
/// `message`.
extern "C" fn call_backward<B: Backward>(
    context: *mut c_void,
    saved: *const *mut C_tensor,
    saved_count: usize,
    output_grads: *const *mut C_tensor,
    output_count: usize,
    input_grads: *mut *mut C_tensor,
    message: *mut c_char,
    message_size: usize,
) -> bool {
    // SAFETY: `context` is the box of `attach_backward`, which the shim has not freed yet.
    let operation = unsafe { &*context.cast::<B>() };
    // SAFETY: the shim keeps these tensors until this function returns; the clones are handles of
    // our own.
    let [saved, output_grads] =
        [(saved, saved_count), (output_grads, output_count)].map(|(tensors, count)| unsafe {
            // An empty C++ vector may have a null pointer, which a slice may not.
            let tensors = if count == 0 { &[] } else { std::slice::from_raw_parts(tensors, count) };
            tensors.iter().map(|tensor| Tensor::clone_from_ptr(*tensor)).collect::<Vec<_>>()
        });
    match guard(|| operation.backward(&saved, &output_grads)).and_then(|grads| grads) {
        Ok(grads) => {
            for (i, grad) in grads.into_iter().enumerate() {
                // SAFETY: there is room for one gradient of each input; the shim frees them.
                unsafe { *input_grads.add(i) = ManuallyDrop::new(grad).as_ptr().cast_mut() };
            }
            true
        }
        Err(error) => {
            // SAFETY: `message` has room for `message_size` bytes.
            unsafe { ffi::write_error(&error.to_string(), message, message_size) };
            false
        }
    }
}

extern "C" fn drop_operation<B>(context: *mut c_void) {
    // SAFETY: `attach_backward` made it from a box, and the shim frees it once.
    drop(unsafe { Box::from_raw(context.cast::<B>()) });
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Computes twice and three times its input.
    struct Multiples;

    impl Backward for Multiples {
        fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
            assert!(saved.len() == 1 && output_grads.iter().all(Tensor::defined));
            guard(|| vec![&output_grads[0] * 2.0 + &output_grads[1] * 3.0])
        }
    }

    #[test]
    fn unused_outputs_have_zero_gradients() {
        let x = Tensor::ones([3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let multiples = || {
            let outputs = tch::no_grad(|| [&x * 2.0, &x * 3.0]);
            attach_backward(Multiples, &[&outputs[0], &outputs[1]], &[&x], &[&x]).unwrap();
            outputs
        };
        for (used, expected) in [(&[0][..], 2.0), (&[1], 3.0), (&[0, 1], 5.0)] {
            let outputs = multiples();
            let sums: Vec<Tensor> = used.iter().map(|i| outputs[*i].sum(Kind::Float)).collect();
            let x_grad = Tensor::run_backward(&sums, &[&x], false, false).remove(0);
            assert_eq!(Vec::<f32>::try_from(x_grad).unwrap(), [expected; 3], "{used:?}");
        }
    }
}
