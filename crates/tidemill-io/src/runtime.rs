//! The threads that move bytes, shared by everything in the process that talks to a store.

use std::future::Future;
use std::sync::OnceLock;

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

/// Waits for an operation on the calling thread, which must belong to no runtime.
///
/// # Errors
/// As the operation, or [`crate::Error::Threads`].
pub fn block_on<T, E: From<crate::Error>>(operation: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    runtime()?.block_on(operation)
}
