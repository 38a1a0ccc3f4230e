//! Timeouts and retries of requests.

use std::time::Duration;

use object_store::{BackoffConfig, ClientOptions, RetryConfig};

/// Timeouts and retries of requests to one store.
///
/// A request is retried after an answer 5xx or 429, a timeout, and a refused or reset connection.
/// If a body breaks off, the next request continues where it broke, as long as the object's entity
/// tag is the same. A store that sends no entity tags (some HTTP servers) gets no retry within a
/// body.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Time to connect.
    pub connect_timeout: Duration,
    /// Time from sending a request to the last byte of its answer. A body that needs longer
    /// continues in another request. For writes this requires a link that moves one part (8 MiB) in
    /// this time.
    pub request_timeout: Duration,
    /// Bytes per request when a larger object is read whole. Each request has its own retries and
    /// time. For reads this requires a link that moves four ranges within `retry_timeout`.
    pub range_bytes: usize,
    /// Retries of one request. By default `retry_timeout` ends before they are used up.
    pub max_retries: usize,
    /// Time after the first attempt from which no further attempt starts. Credentials are not
    /// renewed in between.
    pub retry_timeout: Duration,
    /// The `retry_timeout` of requests for credentials. It is short, because a server for
    /// credentials that does not answer usually does not exist.
    pub credentials_timeout: Duration,
    /// The first pause between two attempts.
    pub initial_backoff: Duration,
    /// The longest pause. Each pause is random, at most `BACKOFF_BASE` times the previous one.
    pub max_backoff: Duration,
}

/// Pauses are uniform between the first one and this multiple of the previous one. With 2 they
/// would not grow, because the mean of the draw is half of the multiple.
const BACKOFF_BASE: f64 = 4.0;

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            range_bytes: 32 << 20,
            max_retries: 60,
            retry_timeout: Duration::from_secs(180),
            credentials_timeout: Duration::from_secs(20),
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(15),
        }
    }
}

impl Limits {
    /// object_store's retry settings for ordinary requests.
    pub(super) fn to_retry_config(&self) -> RetryConfig {
        self.to_config_with_timeout(self.retry_timeout)
    }

    /// object_store's retry settings for requests for credentials.
    pub(super) fn to_credentials_retry_config(&self) -> RetryConfig {
        self.to_config_with_timeout(self.credentials_timeout)
    }

    fn to_config_with_timeout(&self, retry_timeout: Duration) -> RetryConfig {
        let backoff = BackoffConfig {
            init_backoff: self.initial_backoff,
            max_backoff: self.max_backoff,
            base: BACKOFF_BASE,
        };
        RetryConfig { backoff, max_retries: self.max_retries, retry_timeout }
    }

    /// object_store's client settings.
    pub(super) fn to_client_options(&self, allow_http: bool) -> ClientOptions {
        ClientOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_timeout(self.request_timeout)
            .with_allow_http(allow_http)
    }
}
