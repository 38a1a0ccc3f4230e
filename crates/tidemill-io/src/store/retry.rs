//! Retries that object_store does not do itself, and a warning while an operation is being retried.

use std::future::Future;
use std::time::{Duration, Instant};

use object_store::client::{HttpError, HttpErrorKind};

use crate::error::causes;
use crate::runtime::notify_if_slow;
use crate::store::limits::Limits;

/// An operation that takes longer is reported.
const WARN_AFTER: Duration = Duration::from_secs(15);

/// Retries for requests that object_store gives up: those that the store may have served although
/// the answer was lost, and answers other than objects that break off.
pub(crate) struct Retries {
    left: usize,
    deadline: Instant,
    backoff: Duration,
    max_backoff: Duration,
}

impl Retries {
    /// Waits for the next attempt.
    ///
    /// # Errors
    /// Returns `error` if it cannot be retried, or if no attempt is left.
    pub async fn wait_or_fail(&mut self, error: object_store::Error) -> object_store::Result<()> {
        let is_lost_answer = causes::<HttpError>(&error)
            .next()
            .is_some_and(|error| matches!(error.kind(), HttpErrorKind::Timeout | HttpErrorKind::Interrupted));
        if !is_lost_answer || self.left == 0 || Instant::now() > self.deadline {
            return Err(error);
        }
        tracing::info!("{error}; trying again");
        tokio::time::sleep(self.backoff).await;
        self.left -= 1;
        self.backoff = (2 * self.backoff).min(self.max_backoff);
        Ok(())
    }
}

impl Limits {
    /// Starts a new count of retries, with its own time.
    pub(crate) fn start_retries(&self) -> Retries {
        Retries {
            left: self.max_retries,
            deadline: Instant::now() + self.retry_timeout,
            backoff: self.initial_backoff,
            max_backoff: self.max_backoff,
        }
    }

    /// Awaits an operation on an object, and warns if it is slow. A failing store is retried for
    /// minutes; without the warning the process would seem to hang.
    pub(crate) async fn warn_if_slow<T>(
        &self,
        action: &str,
        uri: impl FnOnce() -> String,
        operation: impl Future<Output = T>,
    ) -> T {
        let warn = || {
            let (uri, after, limit) = (uri(), WARN_AFTER.as_secs(), self.retry_timeout.as_secs());
            tracing::warn!(
                "{action} {uri}: not done after {after} s; a failing store is retried for {limit} s"
            );
        };
        notify_if_slow(WARN_AFTER, warn, operation).await
    }
}
