//! Ctrl-C and SIGTERM as a flag that the engine looks at between units. A second Ctrl-C ends the process at once. SIGTERM may come
//! several times and means the same: from a service manager to all processes of a run, and from the one that supervises this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// A wish to stop, raised by a signal if one is watched for, until dropped.
#[derive(Debug, Default)]
pub struct StopSignal {
    raised: Arc<AtomicBool>,
    hooks: Vec<SigId>,
}

impl StopSignal {
    /// Starts watching. Where the system refuses, signals keep their usual meaning.
    pub fn watch() -> Self {
        let raised = Arc::new(AtomicBool::new(false));
        let mut hooks = Vec::new();
        // In this order: the first Ctrl-C finds the flag down and raises it, the second one finds it up.
        let interrupted = Arc::new(AtomicBool::new(false));
        hooks.extend(flag::register_conditional_shutdown(SIGINT, 1, interrupted.clone()));
        hooks.extend(flag::register(SIGINT, interrupted));
        for signal in [SIGINT, SIGTERM] {
            hooks.extend(flag::register(signal, raised.clone()));
        }
        Self { raised, hooks }
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
    }
}
