//! The threads that move bytes, shared by everything in the process that talks to a store.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::Result;

/// Threads that move bytes. They decrypt and copy, nothing else: two keep up with a fast network.
const THREADS: usize = 2;

/// The shared runtime.
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

/// Has `say` speak if an operation is not done after some time.
pub(crate) async fn telling<T>(after: Duration, say: impl FnOnce(), operation: impl Future<Output = T>) -> T {
    let mut operation = pin!(operation);
    match tokio::time::timeout(after, &mut operation).await {
        Ok(done) => done,
        Err(_) => {
            say();
            operation.await
        }
    }
}

/// Waits for an operation on the calling thread, which must belong to no runtime.
///
/// # Errors
/// As the operation, or [`crate::Error::Threads`].
pub fn block_on<T, E: From<crate::Error>>(operation: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    runtime()?.block_on(operation)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_what_takes_long_is_spoken_of() {
        let said = Cell::new(0);
        let operation = |time| async move {
            tokio::time::sleep(time).await;
            7
        };
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(60));
        let run = |after, time| {
            runtime().unwrap().block_on(telling(after, || said.set(said.get() + 1), operation(time)))
        };
        assert_eq!((run(long, short), said.get()), (7, 0));
        assert_eq!((run(Duration::ZERO, short), said.get()), (7, 1));
    }
}
