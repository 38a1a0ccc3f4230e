//! Signals that wait until a product is computed. oneDNN's f32 products for CPUs with AVX2 or AVX-512 have the stack pointer in memory
//! that they have allocated, and the system puts a handler's frame below it, over what lies there (oneDNN issue 4845, mended
//! after 3.11.1). A handler on a stack of its own would do no harm, but whose they are (Python's, a profiler's) does not ask for one.

use std::mem::MaybeUninit;

use crate::Error;
use crate::parallel::parallel;

/// Holds signals back from this thread, until dropped, and from those that compute for it for good: others get them, or this one
/// afterwards. Those that tell a thread of its own mistakes come at once.
pub struct HeldBack {
    before: libc::sigset_t,
}

impl HeldBack {
    /// From now on.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn begin() -> Result<Self, Error> {
        let held = Self { before: hold_back() };
        let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
        parallel(c"tidemill::hold_back_signals", threads, |_| {
            hold_back();
        })?;
        Ok(held)
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        // SAFETY: it is what the system said of this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// From this thread; gives which were before.
fn hold_back() -> libc::sigset_t {
    let own =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];
    let (mut held, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call fills the set that the others change and read; the last one fills the other set. None can fail with
    // these arguments.
    unsafe {
        libc::sigfillset(held.as_mut_ptr());
        own.iter().for_each(|signal| _ = libc::sigdelset(held.as_mut_ptr(), *signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}
