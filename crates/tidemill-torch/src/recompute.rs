//! Gradient checkpointing (Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016): parts of a network of which only
//! the inputs are kept.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::{Error, ffi, guard};

/// A part of a network, and what it does with its inputs.
struct Part<T> {
    module: Arc<T>,
    forward: fn(&T, &[Tensor]) -> Tensor,
}

/// What `forward` makes of `module` and `inputs`. Nothing in between is kept: the backward pass computes it again, on whatever
/// thread it runs on, while its caller waits. `forward` must give the same each time.
///
/// # Errors
/// If libtorch fails.
pub fn gradient_checkpoint<T>(
    module: &Arc<T>,
    inputs: &[&Tensor],
    forward: fn(&T, &[Tensor]) -> Tensor,
) -> Result<Tensor, Error> {
    let context = Box::into_raw(Box::new(Part { module: module.clone(), forward })).cast();
    let inputs: Vec<*mut C_tensor> = inputs.iter().map(|input| input.as_ptr().cast_mut()).collect();
    // SAFETY: the inputs live until the call returns; the shim owns `context` from now on, and frees it by `drop_part`.
    ffi::make("recompute", |out| unsafe {
        ffi::tm_recompute(inputs.as_ptr(), inputs.len(), context, call_part::<T>, drop_part::<T>, out)
    })
}

/// Gives a new tensor, or null and writes why to `message`.
extern "C" fn call_part<T>(
    context: *mut c_void,
    inputs: *const *mut C_tensor,
    n: usize,
    message: *mut c_char,
    room: usize,
) -> *mut C_tensor {
    // SAFETY: the shim passes what `recomputed` gave it, which it has not freed yet.
    let part = unsafe { &*context.cast::<Part<T>>() };
    // SAFETY: the shim has that many tensors, and keeps them until this returns: these are handles of our own.
    let inputs: Vec<Tensor> = unsafe { std::slice::from_raw_parts(inputs, n) }
        .iter()
        .map(|input| unsafe { Tensor::clone_from_ptr(*input) })
        .collect();
    match guard(|| (part.forward)(&part.module, &inputs)) {
        // The shim frees it.
        Ok(output) => ManuallyDrop::new(output).as_ptr().cast_mut(),
        Err(error) => {
            // SAFETY: `message` has the room that the shim says.
            unsafe { ffi::tell(&error.to_string(), message, room) };
            std::ptr::null_mut()
        }
    }
}

extern "C" fn drop_part<T>(context: *mut c_void) {
    // SAFETY: `recomputed` made it from a box, and the shim frees it once.
    drop(unsafe { Box::from_raw(context.cast::<Part<T>>()) });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tch::{Kind, no_grad};

    use super::*;

    /// Weights, and how often they were used.
    struct Product(Tensor, AtomicUsize);

    fn multiply(product: &Product, inputs: &[Tensor]) -> Tensor {
        product.1.fetch_add(1, Ordering::Relaxed);
        (&inputs[0] * &product.0).sin() + &inputs[1]
    }

    #[test]
    #[expect(clippy::arc_with_non_send_sync, reason = "as in a network")]
    fn gradients_are_those_of_what_is_kept() {
        let leaf = |values: &[f64]| Tensor::from_slice(values).set_requires_grad(true);
        let gradients = |recompute: bool| {
            let product = Arc::new(Product(leaf(&[0.5, -2.0]), AtomicUsize::new(0)));
            let (x, y) = (leaf(&[1.0, 3.0]), Tensor::from_slice(&[0.25, 0.5]));
            // Before and after it are others.
            let inputs = [&(&x * 2.0), &y];
            let output = match recompute {
                true => gradient_checkpoint(&product, &inputs, multiply).unwrap(),
                false => multiply(&product, &inputs.map(Tensor::shallow_clone)),
            };
            output.square().sum(Kind::Double).backward();
            let numbers = |tensor: &Tensor| Vec::<f64>::try_from(tensor).unwrap();
            let calls = product.1.load(Ordering::Relaxed);
            (calls, numbers(&output.detach()), numbers(&x.grad()), numbers(&product.0.grad()))
        };
        let (kept, again) = (gradients(false), gradients(true));
        assert_eq!((kept.0, again.0), (1, 2));
        assert_eq!((kept.1, kept.2, kept.3), (again.1, again.2, again.3));
    }

    #[test]
    #[expect(clippy::arc_with_non_send_sync, reason = "as in a network")]
    fn nothing_is_computed_again_without_gradients_and_errors_come_through() {
        let product = Arc::new(Product(Tensor::from_slice(&[1.0]), AtomicUsize::new(0)));
        let x = Tensor::from_slice(&[1.0]);
        let output = no_grad(|| gradient_checkpoint(&product, &[&x, &x], multiply)).unwrap();
        assert!(!output.requires_grad() && Arc::strong_count(&product) == 1);
        let wrong = Tensor::from_slice(&[1.0, 2.0, 3.0]).reshape([3, 1]);
        let bad = |_: &Product, inputs: &[Tensor]| inputs[0].matmul(&inputs[0]);
        let error = gradient_checkpoint(&product, &[&wrong], bad).unwrap_err().to_string();
        assert!(error.contains("mat1 and mat2 shapes cannot be multiplied"), "{error}");
    }
}
