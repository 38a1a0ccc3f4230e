//! Starts and joins the threads of a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::engine::local::run_state::RunState;
use crate::error::{Error, Result};

/// A thread of a run; `None` if the system refused to start it, which stops the run.
pub(crate) type RunThread<'scope> = Option<ScopedJoinHandle<'scope, ()>>;

/// Starts a thread. If it returns an error or panics, the run stops.
pub(crate) fn spawn_thread<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &'static str,
    state: &'scope RunState<'_>,
    body: impl FnOnce() -> Result<()> + Send + 'scope,
) -> RunThread<'scope> {
    let thread = Builder::new().name(name.into()).spawn_scoped(scope, move || {
        let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Error::Thread(name)));
        if let Err(error) = result {
            state.fail(error);
        }
    });
    if thread.is_err() {
        state.fail(Error::Thread(name));
    }
    thread.ok()
}

/// Waits until all threads have ended. Their errors are in the run's state already.
pub(crate) fn join_threads(threads: Vec<RunThread<'_>>) {
    for thread in threads.into_iter().flatten() {
        let _ = thread.join();
    }
}
