//! Blocks signals while oneDNN computes f32 products. Its kernels for CPUs with AVX2 or AVX-512
//! point the stack pointer at memory that they have allocated, and the kernel of the operating
//! system puts a signal handler's frame below the stack pointer, over whatever lies there (oneDNN
//! issue 4845, fixed after 3.11.1). A handler with an alternate stack would be harmless, but the
//! owners of the handlers (Python, a profiler) do not ask for one.

use std::mem::MaybeUninit;

use super::parallel_for::parallel_for;
use crate::Error;

/// Blocks signals on this thread until it is dropped, and on libtorch's other threads for good.
/// Other threads of the process get them, or this one afterwards. Signals for a thread's own faults
/// still come at once.
pub struct SignalMask {
    previous: libc::sigset_t,
}

impl SignalMask {
    /// # Errors
    /// If memory does not suffice.
    pub fn block() -> Result<Self, Error> {
        let mask = Self { previous: block_on_this_thread() };
        let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
        parallel_for(c"tidemill::hold_back_signals", threads, |_| {
            block_on_this_thread();
        })?;
        Ok(mask)
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: this is the mask that the system returned for this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.previous, std::ptr::null_mut()) };
    }
}

/// Blocks all signals but those for faults; returns the previous mask.
fn block_on_this_thread() -> libc::sigset_t {
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];
    let (mut blocked, mut previous) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call fills the set that the others change and read; the last one fills the
    // other set. No call can fail with these arguments.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        faults.iter().for_each(|signal| _ = libc::sigdelset(blocked.as_mut_ptr(), *signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), previous.as_mut_ptr());
        previous.assume_init()
    }
}
