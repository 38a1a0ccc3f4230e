//! Gradient checkpointing (Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016;
//! `torch.utils.checkpoint` in Python): autograd keeps only the inputs of a module, and the
//! backward pass computes its forward pass again.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::ffi::{self, as_raw};
use crate::{Error, guard};

/// A module and its forward pass.
struct Checkpointed<T> {
    module: Arc<T>,
    forward: Forward<T>,
}

/// The forward pass of a module.
pub type Forward<T> = fn(&T, &[Tensor], CheckpointPass) -> Tensor;

/// When a forward pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPass {
    /// In the forward pass of the network, for its output. Autograd is off.
    Forward,
    /// In the backward pass, for its autograd graph. Nobody reads the values of its output.
    Recompute,
}

/// Returns `forward(module, inputs)` without keeping what is computed in between. The backward pass
/// calls `forward` again, on whatever thread it runs on, while its caller waits. `forward` must
/// compute the same values each time.
///
/// # Errors
/// If libtorch fails.
pub fn gradient_checkpoint<T>(
    module: &Arc<T>,
    inputs: &[&Tensor],
    forward: Forward<T>,
) -> Result<Tensor, Error> {
    let context = Box::into_raw(Box::new(Checkpointed { module: module.clone(), forward })).cast();
    let inputs: Vec<*mut C_tensor> = inputs.iter().map(|input| as_raw(input)).collect();
    let (call, drop) = (call_forward::<T>, drop_checkpointed::<T>);
    // SAFETY: the inputs live until the call returns; the shim owns `context` from now on, and
    // frees it by `drop_checkpointed`.
    ffi::make_tensor("gradient_checkpoint", |out| unsafe {
        ffi::tm_gradient_checkpoint(inputs.as_ptr(), inputs.len(), context, call, drop, out)
    })
}

/// Runs a forward pass for the shim and returns a new tensor. On failure it returns null and writes
/// the error to `message`.
extern "C" fn call_forward<T>(
    context: *mut c_void,
    inputs: *const *mut C_tensor,
    input_count: usize,
    recomputes: bool,
    message: *mut c_char,
    message_size: usize,
) -> *mut C_tensor {
    // SAFETY: `context` is the box of `gradient_checkpoint`, which the shim has not freed yet.
    let checkpointed = unsafe { &*context.cast::<Checkpointed<T>>() };
    // SAFETY: the shim has that many tensors, and keeps them until this function returns; the
    // clones are separate handles.
    let inputs: Vec<Tensor> = unsafe { std::slice::from_raw_parts(inputs, input_count) }
        .iter()
        .map(|input| unsafe { Tensor::clone_from_ptr(*input) })
        .collect();
    let pass = if recomputes { CheckpointPass::Recompute } else { CheckpointPass::Forward };
    match guard(|| (checkpointed.forward)(&checkpointed.module, &inputs, pass)) {
        // The shim frees it.
        Ok(output) => ManuallyDrop::new(output).as_ptr().cast_mut(),
        Err(error) => {
            // SAFETY: `message` has room for `message_size` bytes.
            unsafe { ffi::write_error(&error.to_string(), message, message_size) };
            std::ptr::null_mut()
        }
    }
}

extern "C" fn drop_checkpointed<T>(context: *mut c_void) {
    // SAFETY: `gradient_checkpoint` made it from a box, and the shim frees it once.
    drop(unsafe { Box::from_raw(context.cast::<Checkpointed<T>>()) });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tch::{Kind, no_grad};

    use super::*;

    /// Weights, and how often they were used in forward passes and recomputed.
    struct Product(Tensor, [AtomicUsize; 2]);

    fn multiply(product: &Product, inputs: &[Tensor], pass: CheckpointPass) -> Tensor {
        product.1[pass as usize].fetch_add(1, Ordering::Relaxed);
        (&inputs[0] * &product.0).sin() + &inputs[1]
    }

    #[test]
    #[expect(clippy::arc_with_non_send_sync, reason = "as in a network")]
    fn gradients_are_those_of_a_forward_pass_without_checkpointing() {
        let leaf = |values: &[f64]| Tensor::from_slice(values).set_requires_grad(true);
        let gradients = |checkpoint: bool| {
            let product = Arc::new(Product(leaf(&[0.5, -2.0]), Default::default()));
            let (x, y) = (leaf(&[1.0, 3.0]), Tensor::from_slice(&[0.25, 0.5]));
            // Other operations come before and after the product in the graph.
            let inputs = [&(&x * 2.0), &y];
            let output = match checkpoint {
                true => gradient_checkpoint(&product, &inputs, multiply).unwrap(),
                false => multiply(&product, &inputs.map(Tensor::shallow_clone), CheckpointPass::Forward),
            };
            output.square().sum(Kind::Double).backward();
            let numbers = |tensor: &Tensor| Vec::<f64>::try_from(tensor).unwrap();
            let calls = product.1.each_ref().map(|calls| calls.load(Ordering::Relaxed));
            (calls, numbers(&output.detach()), numbers(&x.grad()), numbers(&product.0.grad()))
        };
        let (plain, checkpointed) = (gradients(false), gradients(true));
        assert_eq!((plain.0, checkpointed.0), ([1, 0], [1, 1]));
        assert_eq!((plain.1, plain.2, plain.3), (checkpointed.1, checkpointed.2, checkpointed.3));
    }

    #[test]
    #[expect(clippy::arc_with_non_send_sync, reason = "as in a network")]
    fn nothing_is_kept_without_gradients_and_errors_are_passed_on() {
        let product = Arc::new(Product(Tensor::from_slice(&[1.0]), Default::default()));
        let x = Tensor::from_slice(&[1.0]);
        let output = no_grad(|| gradient_checkpoint(&product, &[&x, &x], multiply)).unwrap();
        assert!(!output.requires_grad() && Arc::strong_count(&product) == 1);
        let wrong = Tensor::from_slice(&[1.0, 2.0, 3.0]).reshape([3, 1]);
        let bad = |_: &Product, inputs: &[Tensor], _: CheckpointPass| inputs[0].matmul(&inputs[0]);
        let error = gradient_checkpoint(&product, &[&wrong], bad).unwrap_err().to_string();
        assert!(error.contains("mat1 and mat2 shapes cannot be multiplied"), "{error}");
    }
}
