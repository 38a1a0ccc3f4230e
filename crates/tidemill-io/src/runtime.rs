//! The I/O threads, shared by everything in the process that talks to a store.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::Result;

/// The number of I/O threads. They only decrypt and copy bytes; two keep up with a fast network.
const THREADS: usize = 2;

/// The shared tokio runtime; the first call starts it.
///
/// # Errors
/// [`crate::Error::Threads`] if the system refuses to start the threads.
pub fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("tidemill-io")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// Awaits an operation, and calls `notify` once if it is not done after `delay`.
pub(crate) async fn notify_if_slow<T>(
    delay: Duration,
    notify: impl FnOnce(),
    operation: impl Future<Output = T>,
) -> T {
    let mut operation = pin!(operation);
    match tokio::time::timeout(delay, &mut operation).await {
        Ok(output) => output,
        Err(_) => {
            notify();
            operation.await
        }
    }
}

/// Blocks the calling thread until an operation is done. The thread must not belong to a tokio
/// runtime.
///
/// # Errors
/// The operation's error, or [`crate::Error::Threads`].
pub fn block_on<T, E: From<crate::Error>>(operation: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    runtime()?.block_on(operation)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_slow_operations_are_reported() {
        let notified = Cell::new(0);
        let operation = |time| async move {
            tokio::time::sleep(time).await;
            7
        };
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(60));
        let run = |delay, time| {
            let notify = || notified.set(notified.get() + 1);
            runtime().unwrap().block_on(notify_if_slow(delay, notify, operation(time)))
        };
        assert_eq!((run(long, short), notified.get()), (7, 0));
        assert_eq!((run(Duration::ZERO, short), notified.get()), (7, 1));
    }
}
