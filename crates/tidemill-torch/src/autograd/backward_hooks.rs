//! Hooks on backward passes: after a parameter's gradient is complete (`register_post_accumulate_grad_hook` in
//! Python), and before the backward pass of an operation (`Node.register_prehook`). They let communication overlap
//! with computation.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;
use torch_sys::C_tensor;

use crate::Error;
use crate::ffi::{self, as_raw};

/// Takes over a gradient, if it is called with one.
type Hook = Box<dyn Fn(Option<Tensor>) -> Result<(), Error> + Send + Sync>;

/// Makes backward passes give the gradient of `param` to `hook` instead of keeping it with the
/// parameter. If the hook fails, the backward pass fails. The hook runs on the thread of the
/// backward pass.
///
/// # Errors
/// If libtorch refuses the parameter.
pub fn register_grad_hook(
    param: &Tensor,
    hook: impl Fn(Tensor) -> Result<(), Error> + Send + Sync + 'static,
) -> Result<(), Error> {
    let context = to_context(Box::new(move |grad| grad.map_or(Ok(()), &hook)));
    // SAFETY: the parameter lives until the call returns; the shim owns `context` from now on, and
    // frees it by `drop_hook`.
    let error = unsafe { ffi::tm_register_grad_hook(as_raw(param), context, call_hook, drop_hook) };
    ffi::check("register_grad_hook", error)
}

/// Removes the hook of [`register_grad_hook`] from `param`: its gradients are kept with it again.
///
/// # Errors
/// If libtorch refuses the parameter.
pub fn remove_grad_hook(param: &Tensor) -> Result<(), Error> {
    // SAFETY: the parameter lives until the call returns.
    ffi::check("remove_grad_hook", unsafe { ffi::tm_remove_grad_hook(as_raw(param)) })
}

/// Calls `hook` in each backward pass through `output`, before that of the operation which made it. Nothing happens if
/// `output` is not part of a graph. If the hook fails, the backward pass fails. The hook runs on the thread of the
/// backward pass.
///
/// # Errors
/// If libtorch refuses the tensor.
pub fn register_pre_backward_hook(
    output: &Tensor,
    hook: impl Fn() -> Result<(), Error> + Send + Sync + 'static,
) -> Result<(), Error> {
    let context = to_context(Box::new(move |_| hook()));
    // SAFETY: the tensor lives until the call returns; the shim owns `context` from now on, and frees it by
    // `drop_hook`.
    let error = unsafe { ffi::tm_register_pre_backward_hook(as_raw(output), context, call_hook, drop_hook) };
    ffi::check("register_pre_backward_hook", error)
}

/// Boxes a hook twice: a pointer to a trait object is two words, and C takes one.
fn to_context(hook: Hook) -> *mut c_void {
    Box::into_raw(Box::new(hook)).cast()
}

/// Calls a hook for the shim. On failure it returns false and writes the error to `message`.
extern "C" fn call_hook(
    context: *mut c_void,
    grad: *mut C_tensor,
    message: *mut c_char,
    message_size: usize,
) -> bool {
    // SAFETY: `context` is the box of `to_context`, which the shim has not freed yet.
    let hook = unsafe { &*context.cast::<Hook>() };
    // SAFETY: the shim made the tensor for this call to own.
    let grad = (!grad.is_null()).then(|| unsafe { Tensor::from_ptr(grad) });
    let text = match catch_unwind(AssertUnwindSafe(|| hook(grad))) {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "a hook on a backward pass panicked".into(),
    };
    // SAFETY: `message` has room for `message_size` bytes.
    unsafe { ffi::write_error(&text, message, message_size) };
    false
}

extern "C" fn drop_hook(context: *mut c_void) {
    // SAFETY: `to_context` made it from a box, and the shim frees it once.
    drop(unsafe { Box::from_raw(context.cast::<Hook>()) });
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tch::Kind;

    use super::*;
    use crate::guard;

    #[test]
    fn hooks_take_gradients_in_the_order_of_the_backward_pass() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let param = |name: &'static str, value: f32| {
            let param = Tensor::from_slice(&[value]).set_requires_grad(true);
            let seen = seen.clone();
            register_grad_hook(&param, move |grad| {
                seen.lock().unwrap().push((name, grad.double_value(&[0])));
                Ok(())
            })
            .unwrap();
            param
        };
        let (first, last) = (param("first", 2.0), param("last", 3.0));
        let output = (&first * &first).exp() * &last;
        output.sum(Kind::Float).backward();
        let e4 = 4f32.exp() as f64;
        let seen = seen.lock().unwrap();
        assert_eq!(seen.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["last", "first"]);
        assert!((seen[0].1 / e4 - 1.0).abs() < 1e-6 && (seen[1].1 / (12.0 * e4) - 1.0).abs() < 1e-6);
        assert!(!first.grad().defined() && !last.grad().defined());
        drop(seen);
        remove_grad_hook(&first).unwrap();
        (&first * &last).sum(Kind::Float).backward();
        assert_eq!(first.grad().double_value(&[0]), 3.0);
        assert!(!last.grad().defined());
    }

    #[test]
    fn failing_hook_fails_the_backward_pass_and_is_dropped_with_its_parameter() {
        let alive = Arc::new(());
        let param = Tensor::from_slice(&[2f32]).set_requires_grad(true);
        let captured = alive.clone();
        let hook = move |_| {
            let _ = &captured;
            Err(Error::Torch("no room for it".into()))
        };
        register_grad_hook(&param, hook).unwrap();
        let failed = guard(|| (&param * &param).sum(Kind::Float).backward());
        assert!(failed.unwrap_err().to_string().contains("no room for it"));
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(param);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn hooks_run_from_the_last_operation_to_the_first() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let hook = |name: &'static str| {
            let order = order.clone();
            move || {
                order.lock().unwrap().push(name);
                Ok(())
            }
        };
        let x = Tensor::from_slice(&[1.0, 2.0]).set_requires_grad(true);
        let first = x.sin();
        register_pre_backward_hook(&first, hook("first")).unwrap();
        let second = &first * &first;
        register_pre_backward_hook(&second, hook("second")).unwrap();
        register_pre_backward_hook(&second.detach(), hook("not in the graph")).unwrap();
        second.sum(tch::Kind::Double).backward();
        assert_eq!(*order.lock().unwrap(), ["second", "first"]);
    }

    #[test]
    fn error_of_a_hook_ends_the_backward_pass() {
        let output = Tensor::from_slice(&[1.0]).set_requires_grad(true).sin();
        let fail = || Err(Error::Torch("the weights are lost".into()));
        register_pre_backward_hook(&output, fail).unwrap();
        let error = crate::guard(|| output.backward()).unwrap_err().to_string();
        assert!(error.contains("the weights are lost"), "{error}");
    }
}
