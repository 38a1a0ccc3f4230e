//! Ctrl-C, SIGTERM and a terminal that is gone (SIGHUP) as a flag that the engine looks at between units. A second Ctrl-C ends the
//! process at once. SIGTERM may come several times and means the same: from a service manager to all processes of a run, and from the
//! one that supervises this.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Those that ask to stop, but for what was to be ignored from the beginning, as `nohup` has it.
static SIGNALS: LazyLock<Vec<i32>> = LazyLock::new(|| {
    let all = [SIGINT, SIGTERM, SIGHUP].into_iter();
    all.filter(|signal| handler(*signal) != Some(libc::SIG_IGN)).collect()
});

/// How many watch.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// Whether nobody does. Once a signal was watched for, it does nothing by itself any more: then it has to be told to.
static UNWATCHED: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
    let unwatched = Arc::new(AtomicBool::new(false));
    // That of a host (Python) goes on.
    for signal in SIGNALS.iter().copied().filter(|signal| handler(*signal) == Some(libc::SIG_DFL)) {
        // Where the system refuses, signals keep their usual meaning.
        let _ = flag::register_conditional_default(signal, unwatched.clone());
    }
    unwatched
});

/// What is done about a signal.
#[expect(unsafe_code, reason = "asks for a signal's handler")]
fn handler(signal: i32) -> Option<libc::sighandler_t> {
    // SAFETY: all zeros is a value of this type; it is only written to, and nothing is changed.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let answer = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    (answer == 0).then_some(action.sa_sigaction)
}

/// A wish to stop, raised by a signal if one is watched for, until dropped.
#[derive(Debug, Default)]
pub struct StopSignal {
    raised: Arc<AtomicBool>,
    hooks: Vec<SigId>,
    watches: bool,
}

impl StopSignal {
    /// Starts watching. Where the system refuses, signals keep their usual meaning.
    pub fn watch() -> Self {
        // Before any other handler.
        let unwatched = UNWATCHED.clone();
        WATCHERS.fetch_add(1, Ordering::SeqCst);
        unwatched.store(false, Ordering::SeqCst);
        let raised = Arc::new(AtomicBool::new(false));
        let mut hooks = Vec::new();
        // In this order: the first Ctrl-C finds the flag down and raises it, the second one finds it up.
        let interrupted = Arc::new(AtomicBool::new(false));
        hooks.extend(flag::register_conditional_shutdown(SIGINT, 1, interrupted.clone()));
        hooks.extend(flag::register(SIGINT, interrupted));
        for signal in SIGNALS.iter().copied() {
            hooks.extend(flag::register(signal, raised.clone()));
        }
        Self { raised, hooks, watches: true }
    }

    /// Asks to stop, as a signal does.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked to stop.
    pub fn raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}

impl Drop for StopSignal {
    fn drop(&mut self) {
        for hook in self.hooks.drain(..) {
            low_level::unregister(hook);
        }
        // Those by `default` have not watched.
        if self.watches && WATCHERS.fetch_sub(1, Ordering::SeqCst) == 1 {
            UNWATCHED.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "TIDEMILL_TEST_SIGNALS";

    /// In a process of its own, which then ends by a signal.
    #[test]
    fn a_signal_that_nobody_watches_for_any_more_ends_the_process() {
        if let Ok(signal) = std::env::var(CHILD) {
            let signal = signal.parse().unwrap();
            let (first, second) = (StopSignal::watch(), StopSignal::watch());
            drop(first);
            low_level::raise(signal).unwrap();
            assert!(second.raised());
            drop(second);
            low_level::raise(signal).unwrap();
            std::process::exit(7);
        }
        for signal in SIGNALS.iter().copied() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let ended = child.args(["--exact", &name]).env(CHILD, signal.to_string()).output().unwrap();
            assert_eq!(ended.status.signal(), Some(signal), "{ended:?}");
        }
    }
}
