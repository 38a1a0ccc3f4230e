//! Turns Ctrl-C (SIGINT), SIGTERM and a closed terminal (SIGHUP) into a flag that the engine checks
//! between units. A second Ctrl-C ends the process at once. SIGTERM may arrive several times and
//! means the same each time, because both a service manager and the supervisor send it to all
//! processes of a run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// The signals that ask to stop. A signal that the process was started to ignore is not among them:
/// `nohup` ignores SIGHUP.
static SIGNALS: LazyLock<Vec<i32>> = LazyLock::new(|| {
    let all = [SIGINT, SIGTERM, SIGHUP].into_iter();
    all.filter(|signal| handler(*signal) != Some(libc::SIG_IGN)).collect()
});

/// The number of [`StopSignal`]s that watch.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// Whether no [`StopSignal`] watches. A signal that was watched once has a handler from then on and
/// loses its default action, so while nobody watches, the handler must perform the default action.
static IS_UNWATCHED: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
    let unwatched = Arc::new(AtomicBool::new(false));
    // A handler of the host program (Python) stays in force beside ours.
    for signal in SIGNALS.iter().copied().filter(|signal| handler(*signal) == Some(libc::SIG_DFL)) {
        // If the system refuses, signals keep their usual meaning.
        let _ = flag::register_conditional_default(signal, unwatched.clone());
    }
    unwatched
});

/// The current action for a signal.
#[expect(unsafe_code, reason = "reads a signal's action")]
fn current_action(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all zeros is a value of this type; it is only written to, and nothing is changed.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let answer = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    (answer == 0).then_some(action)
}

fn handler(signal: i32) -> Option<libc::sighandler_t> {
    current_action(signal).map(|action| action.sa_sigaction)
}

/// Sets an action that the signal had before.
#[expect(unsafe_code, reason = "sets a signal's action")]
fn restore_action(signal: i32, action: &libc::sigaction) {
    // SAFETY: the system gave the action for this signal, and its handler is still part of the
    // process.
    unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) };
}

/// The actions of signal-hook and of the host program. A host may set handlers of its own between
/// two watches (Python's `signal.signal`). signal-hook does not notice that its handler is gone, so
/// we put it back. It also calls the handler that was there before it; Python's handler is always
/// the same.
struct SignalActions {
    /// signal-hook's actions, by signal.
    ours: BTreeMap<i32, libc::sigaction>,
    /// The host's actions, which are restored when nobody watches any more.
    host: BTreeMap<i32, libc::sigaction>,
}

static ACTIONS: Mutex<SignalActions> =
    Mutex::new(SignalActions { ours: BTreeMap::new(), host: BTreeMap::new() });

impl SignalActions {
    fn lock() -> MutexGuard<'static, Self> {
        ACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that signal-hook's handlers are in force. Call it after registering with
    /// signal-hook.
    fn install_ours(&mut self) {
        for (signal, now) in SIGNALS.iter().filter_map(|signal| Some((*signal, current_action(*signal)?))) {
            let ours = self.ours.entry(signal).or_insert(now);
            if ours.sa_sigaction != now.sa_sigaction {
                restore_action(signal, ours);
                self.host.insert(signal, now);
            }
        }
    }

    fn restore_host(&mut self) {
        std::mem::take(&mut self.host).iter().for_each(|(signal, action)| restore_action(*signal, action));
    }
}

/// A request to stop. [`watch`](Self::watch) makes one that signals raise, until it is dropped; the
/// default one is raised by code only.
#[derive(Debug, Default)]
pub struct StopSignal {
    raised: Arc<AtomicBool>,
    hooks: Vec<SigId>,
    is_watching: bool,
}

impl StopSignal {
    /// Starts to watch for signals. If the system refuses, signals keep their usual meaning.
    pub fn watch() -> Self {
        // Initialized before any other handler is registered.
        let unwatched = IS_UNWATCHED.clone();
        WATCHERS.fetch_add(1, Ordering::SeqCst);
        unwatched.store(false, Ordering::SeqCst);
        let raised = Arc::new(AtomicBool::new(false));
        let mut hooks = Vec::new();
        // The order matters: the first Ctrl-C finds `interrupted` unset and sets it; the second
        // finds it set and ends the process.
        let interrupted = Arc::new(AtomicBool::new(false));
        hooks.extend(flag::register_conditional_shutdown(SIGINT, 1, interrupted.clone()));
        hooks.extend(flag::register(SIGINT, interrupted));
        for signal in SIGNALS.iter().copied() {
            hooks.extend(flag::register(signal, raised.clone()));
        }
        SignalActions::lock().install_ours();
        Self { raised, hooks, is_watching: true }
    }

    /// Asks to stop, as a signal does.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// Whether a signal or [`raise`](Self::raise) has asked to stop.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}

impl Drop for StopSignal {
    fn drop(&mut self) {
        for hook in self.hooks.drain(..) {
            low_level::unregister(hook);
        }
        if self.is_watching && WATCHERS.fetch_sub(1, Ordering::SeqCst) == 1 {
            IS_UNWATCHED.store(true, Ordering::SeqCst);
            SignalActions::lock().restore_host();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "TIDEMILL_TEST_SIGNALS";

    /// Runs itself in a child process for each signal, because the signal ends the process.
    #[test]
    fn unwatched_signal_ends_the_process() {
        if let Ok(signal) = std::env::var(CHILD) {
            let signal = signal.parse().unwrap();
            let before = current_action(signal).unwrap();
            drop(StopSignal::watch());
            // What a host program with handlers of its own does.
            restore_action(signal, &before);
            let (first, second) = (StopSignal::watch(), StopSignal::watch());
            drop(first);
            low_level::raise(signal).unwrap();
            assert!(second.is_raised());
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
