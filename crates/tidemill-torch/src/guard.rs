//! `tch`'s operators panic when libtorch refuses them (out of memory, a shape that does not fit).
//! Model code reads best with those operators, so the boundary that runs a whole step or batch
//! wraps it in [`guard`] and gets an error instead.

use crate::{Error, headline};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

static QUIET_HOOK: Once = Once::new();

/// Runs `work`; a panic inside it (all that `tch` can raise) becomes [`Error::Torch`] with libtorch's
/// message, and nothing is printed.
///
/// State that `work` was changing when it failed must be thrown away by the caller; whether gradients are wanted is as it was.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, Error> {
    QUIET_HOOK.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                default(info);
            }
        }));
    });
    let (outer, wanted) = (GUARDED.replace(true), wants_gradients());
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    if result.is_err() {
        // What a panic leaves, `tch::no_grad` does not put back.
        set_wants_gradients(wanted);
    }
    result.map_err(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap_or_else(|| "a panic without a message".to_string());
        Error::Torch(headline(&text))
    })
}

/// Whether operations are followed for gradients.
pub(crate) fn wants_gradients() -> bool {
    // There is no way to only ask for it.
    let wanted = set_wants_gradients(false);
    set_wants_gradients(wanted);
    wanted
}

/// Gives what it was.
fn set_wants_gradients(wanted: bool) -> bool {
    // SAFETY: it sets and gives a flag of this thread.
    unsafe { torch_sys::at_grad_set_enabled(wanted.into()) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};

    #[test]
    fn a_shape_error_becomes_one_line() {
        let a = Tensor::zeros([2, 3], (Kind::Float, tch::Device::Cpu));
        let error = guard(|| a.matmul(&a)).unwrap_err().to_string();
        assert_eq!(error, "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
        assert_eq!(guard(|| 7).unwrap(), 7);
        assert!(guard(|| tch::no_grad(|| a.matmul(&a))).is_err() && wants_gradients());
        tch::no_grad(|| assert!(guard(|| tch::with_grad(|| a.matmul(&a))).is_err() && !wants_gradients()));
    }
}
