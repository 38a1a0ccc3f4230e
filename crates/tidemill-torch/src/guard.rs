//! Turns the panics of `tch` into errors. `tch`'s operators panic when libtorch refuses them (out
//! of memory, a shape that does not fit). Model code reads best with those operators, so the code
//! that runs a whole step or batch wraps it in [`guard`].

use crate::Error;
use crate::error::strip_backtrace;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

static INSTALL_HOOK: Once = Once::new();

/// Runs `work`; a panic inside it (all that `tch` can raise) becomes [`Error::Torch`] with
/// libtorch's message, and nothing is printed.
///
/// The caller must throw away state that `work` was changing when it failed. Whether gradients are
/// enabled is restored.
///
/// # Errors
/// If `work` panics.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, Error> {
    INSTALL_HOOK.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                default(info);
            }
        }));
    });
    let (was_guarded, had_grad) = (IS_GUARDED.replace(true), is_grad_enabled());
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was_guarded);
    if result.is_err() {
        // `tch::no_grad` does not restore the mode when a panic leaves it.
        set_grad_enabled(had_grad);
    }
    result.map_err(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap_or_else(|| "a panic without a message".to_string());
        Error::Torch(strip_backtrace(&text))
    })
}

/// Whether autograd records operations on this thread (`torch.is_grad_enabled`).
pub(crate) fn is_grad_enabled() -> bool {
    // torch-sys can only set the mode and return the previous one.
    let enabled = set_grad_enabled(false);
    set_grad_enabled(enabled);
    enabled
}

/// Sets the mode and returns the previous one.
fn set_grad_enabled(enabled: bool) -> bool {
    // SAFETY: the call sets and returns a flag of this thread.
    unsafe { torch_sys::at_grad_set_enabled(enabled.into()) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};

    #[test]
    fn shape_error_becomes_one_line_and_grad_mode_is_restored() {
        let a = Tensor::zeros([2, 3], (Kind::Float, tch::Device::Cpu));
        let error = guard(|| a.matmul(&a)).unwrap_err().to_string();
        assert_eq!(error, "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
        assert_eq!(guard(|| 7).unwrap(), 7);
        assert!(guard(|| tch::no_grad(|| a.matmul(&a))).is_err() && is_grad_enabled());
        tch::no_grad(|| assert!(guard(|| tch::with_grad(|| a.matmul(&a))).is_err() && !is_grad_enabled()));
    }
}
