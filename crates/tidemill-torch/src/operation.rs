//! Operations of our own in autograd's graph.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::{Error, ffi, guard};

/// What the backward pass does for an operation.
pub trait Backward {
    /// The gradients of the operation's inputs, in their order, from those of its outputs, and from what was kept.
    ///
    /// # Errors
    /// If libtorch fails.
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error>;
}

/// Has the backward pass know that `outputs`, which have no gradient so far, were computed from `inputs`. Until then
/// `kept` is, among which no output itself may be, but where there will be no backward pass.
///
/// # Errors
/// If libtorch fails.
pub fn differentiable<B: Backward>(
    operation: B,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    kept: &[&Tensor],
) -> Result<(), Error> {
    let context = Box::into_raw(Box::new(operation)).cast();
    let pointers = |tensors: &[&Tensor]| -> Vec<*mut C_tensor> {
        tensors.iter().map(|tensor| tensor.as_ptr().cast_mut()).collect()
    };
    let (outputs, inputs, kept) = (pointers(outputs), pointers(inputs), pointers(kept));
    // SAFETY: the tensors live until the call returns; the shim owns `context` from now on, and frees it by `drop_operation`.
    let answer = unsafe {
        ffi::tm_operation(
            outputs.as_ptr(),
            outputs.len(),
            inputs.as_ptr(),
            inputs.len(),
            kept.as_ptr(),
            kept.len(),
            context,
            call_backward::<B>,
            drop_operation::<B>,
        )
    };
    ffi::check("operation", answer)
}

/// Writes gradients to `grads`, or why there are none to `message`.
extern "C" fn call_backward<B: Backward>(
    context: *mut c_void,
    kept: *const *mut C_tensor,
    n: usize,
    outputs: *const *mut C_tensor,
    m: usize,
    grads: *mut *mut C_tensor,
    message: *mut c_char,
    room: usize,
) -> bool {
    // SAFETY: the shim passes what `differentiable` gave it, which it has not freed yet.
    let operation = unsafe { &*context.cast::<B>() };
    // SAFETY: the shim has these tensors, and keeps them until this returns: these are handles of our own.
    let [kept, outputs] = [(kept, n), (outputs, m)].map(|(tensors, n)| unsafe {
        // C++ has no address for none.
        let tensors = if n == 0 { &[] } else { std::slice::from_raw_parts(tensors, n) };
        tensors.iter().map(|tensor| Tensor::clone_from_ptr(*tensor)).collect::<Vec<_>>()
    });
    match guard(|| operation.backward(&kept, &outputs)).and_then(|found| found) {
        Ok(found) => {
            for (i, gradient) in found.into_iter().enumerate() {
                // SAFETY: there is room for one gradient of each input; the shim frees them.
                unsafe { *grads.add(i) = ManuallyDrop::new(gradient).as_ptr().cast_mut() };
            }
            true
        }
        Err(error) => {
            // SAFETY: `message` has the room that the shim says.
            unsafe { ffi::tell(&error.to_string(), message, room) };
            false
        }
    }
}

extern "C" fn drop_operation<B>(context: *mut c_void) {
    // SAFETY: `differentiable` made it from a box, and the shim frees it once.
    drop(unsafe { Box::from_raw(context.cast::<B>()) });
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Twice and thrice its input.
    struct Multiples;

    impl Backward for Multiples {
        fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
            assert!(kept.len() == 1 && grads.iter().all(Tensor::defined));
            guard(|| vec![&grads[0] * 2.0 + &grads[1] * 3.0])
        }
    }

    #[test]
    fn of_several_outputs_some_may_go_unused() {
        let x = Tensor::ones([3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let multiples = || {
            let outputs = tch::no_grad(|| [&x * 2.0, &x * 3.0]);
            differentiable(Multiples, &[&outputs[0], &outputs[1]], &[&x], &[&x]).unwrap();
            outputs
        };
        for (used, expected) in [(&[0][..], 2.0), (&[1], 3.0), (&[0, 1], 5.0)] {
            let outputs = multiples();
            let sums: Vec<Tensor> = used.iter().map(|i| outputs[*i].sum(Kind::Float)).collect();
            let to_x = Tensor::run_backward(&sums, &[&x], false, false).remove(0);
            assert_eq!(Vec::<f32>::try_from(to_x).unwrap(), [expected; 3], "{used:?}");
        }
    }
}
