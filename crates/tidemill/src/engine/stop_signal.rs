//! Ctrl-C, SIGTERM and a terminal that is gone (SIGHUP) as a flag that the engine looks at between units. A second Ctrl-C ends the
//! process at once. SIGTERM may come several times and means the same: from a service manager to all processes of a run, and from the
//! one that supervises this.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

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
fn action(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all zeros is a value of this type; it is only written to, and nothing is changed.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let answer = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    (answer == 0).then_some(action)
}

fn handler(signal: i32) -> Option<libc::sighandler_t> {
    action(signal).map(|action| action.sa_sigaction)
}

/// Has something done about a signal that was done about it before.
#[expect(unsafe_code, reason = "puts a signal's handler back")]
fn put_back(signal: i32, action: &libc::sigaction) {
    // SAFETY: the system gave the action for this signal, and its handler is still part of the process.
    unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) };
}

/// What is done about signals where a host sets handlers of its own (Python's `signal.signal`) between two watches: signal-hook does
/// not see that its handler is gone. It calls the one that was there before it, too, and Python's is always the same.
struct Handlers {
    /// signal-hook's, by signal.
    ours: BTreeMap<i32, libc::sigaction>,
    /// The host's, which have their turn again when nobody watches any more.
    theirs: BTreeMap<i32, libc::sigaction>,
}

static HANDLERS: Mutex<Handlers> = Mutex::new(Handlers { ours: BTreeMap::new(), theirs: BTreeMap::new() });

impl Handlers {
    fn lock() -> MutexGuard<'static, Self> {
        HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After signal-hook was asked to watch.
    fn take(&mut self) {
        for (signal, now) in SIGNALS.iter().filter_map(|signal| Some((*signal, action(*signal)?))) {
            let ours = self.ours.entry(signal).or_insert(now);
            if ours.sa_sigaction != now.sa_sigaction {
                put_back(signal, ours);
                self.theirs.insert(signal, now);
            }
        }
    }

    fn give_back(&mut self) {
        std::mem::take(&mut self.theirs).iter().for_each(|(signal, action)| put_back(*signal, action));
    }
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
        Handlers::lock().take();
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
            Handlers::lock().give_back();
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
            let before = action(signal).unwrap();
            drop(StopSignal::watch());
            // As a host does that has handlers of its own.
            put_back(signal, &before);
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
