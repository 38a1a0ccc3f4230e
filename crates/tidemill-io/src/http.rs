//! Downloads from web servers. Each URL is sent exactly as the user wrote it, with `//`, `%2F`, `[`
//! and signatures. Of an answer only the status and the body count. All hosts share one client,
//! because datasets name thousands of hosts and each client holds a copy of the system's
//! certificates.

use std::error::Error as StdError;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use tokio::time::timeout;
use url::Url;

use crate::store::{Limits, limits_for_root};

/// A download that keeps sending may take this many times [`Limits::request_timeout`], which
/// applies to each chunk of it.
const MAX_DOWNLOAD_TIMEOUTS: u32 = 10;

/// How long an idle connection stays open. A dataset may name thousands of hosts, most of them
/// once. With the usual 90 s, idle connections would use up the process's limit on open files.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Idle connections kept per host. A host with many images gets its next request at once, so few of
/// its connections are idle.
const MAX_IDLE_PER_HOST: usize = 16;

/// Grants memory for the bytes of a download.
pub trait MemoryGate {
    /// Waits until this download may hold `bytes` bytes in total.
    fn wait_for(&mut self, bytes: u64) -> impl Future<Output = ()> + Send;
}

/// Grants any number of bytes.
impl MemoryGate for () {
    async fn wait_for(&mut self, _: u64) {}
}

/// Why a download failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// The file does not exist.
    #[error("there is no such file")]
    NotFound,
    /// The file is larger than the caller's limit.
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
    /// The URL is invalid.
    #[error("it is no URL: {0}")]
    Url(#[from] url::ParseError),
    /// The server answered with an error status.
    #[error("the server answered {status}")]
    Status {
        /// The status.
        status: StatusCode,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// No data arrived for this time.
    #[error("nothing came for {0:?}")]
    TimedOut(Duration),
    /// There was no answer, or it broke off.
    #[error("{}", join_causes(.0))]
    Interrupted(#[source] reqwest::Error),
}

impl From<reqwest::Error> for DownloadError {
    fn from(error: reqwest::Error) -> Self {
        // A URL may hold a signature, and the caller knows the URL.
        Self::Interrupted(error.without_url())
    }
}

/// Downloads a whole file of at most `max_bytes` bytes, with the user name and password in its URL,
/// if any. Reads no byte before `gate` has granted memory for it.
///
/// # Errors
/// Any [`DownloadError`]. Transient errors were retried as the host's [`Limits`] say; timeouts
/// once.
pub async fn get(url: &str, max_bytes: u64, gate: &mut impl MemoryGate) -> Result<Bytes, DownloadError> {
    let url = Url::parse(url)?;
    let limits = limits_for_root(&format!("{}/", url.origin().ascii_serialization()));
    let mut retries = Retries::new(&limits);
    loop {
        match try_download(&url, &limits, max_bytes, gate).await {
            Ok(bytes) => return Ok(bytes),
            Err(error) => retries.wait_or_fail(error).await?,
        }
    }
}

async fn try_download(
    url: &Url,
    limits: &Limits,
    max_bytes: u64,
    gate: &mut impl MemoryGate,
) -> Result<Bytes, DownloadError> {
    let chunk_timeout = limits.request_timeout;
    let request = client()?.get(url.clone()).timeout(chunk_timeout * MAX_DOWNLOAD_TIMEOUTS);
    let timed_out = |_| DownloadError::TimedOut(chunk_timeout);
    let mut response = timeout(chunk_timeout, request.send()).await.map_err(timed_out)??;
    check_status(&response)?;
    // Some servers do not announce the length.
    let announced = response.content_length().unwrap_or(0);
    wait_for_memory(announced, max_bytes, gate).await?;
    let mut bytes = Vec::with_capacity(announced as usize);
    while let Some(chunk) = timeout(chunk_timeout, response.chunk()).await.map_err(timed_out)?? {
        wait_for_memory((bytes.len() + chunk.len()) as u64, max_bytes, gate).await?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

/// Waits until the download may hold `bytes` bytes in total.
async fn wait_for_memory(
    bytes: u64,
    max_bytes: u64,
    gate: &mut impl MemoryGate,
) -> Result<(), DownloadError> {
    if bytes > max_bytes {
        return Err(DownloadError::TooLarge(max_bytes));
    }
    gate.wait_for(bytes).await;
    Ok(())
}

fn check_status(response: &Response) -> Result<(), DownloadError> {
    match response.status() {
        status if status.is_success() => Ok(()),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(DownloadError::NotFound),
        status => Err(DownloadError::Status { status, retry_after: parse_retry_after(response.headers()) }),
    }
}

/// Parses the header `Retry-After` in seconds; ignores its form with a date.
fn parse_retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// The client that all downloads share.
fn client() -> Result<&'static Client, DownloadError> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // Some servers refuse requests without a user agent.
    let user_agent = concat!("tidemill/", env!("CARGO_PKG_VERSION"));
    let client = Client::builder()
        .user_agent(user_agent)
        .connect_timeout(Limits::default().connect_timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
        .build()?;
    Ok(CLIENT.get_or_init(|| client))
}

/// The retries of one download.
struct Retries<'a> {
    limits: &'a Limits,
    started: Instant,
    retries: usize,
    backoff: Duration,
}

impl<'a> Retries<'a> {
    fn new(limits: &'a Limits) -> Self {
        Self { limits, started: Instant::now(), retries: 0, backoff: limits.initial_backoff }
    }

    /// Waits for the next attempt, or returns `error` if there is none.
    async fn wait_or_fail(&mut self, error: DownloadError) -> Result<(), DownloadError> {
        if self.retries >= self.max_retries(&error) || self.started.elapsed() > self.limits.retry_timeout {
            return Err(error);
        }
        let retry_after = match &error {
            DownloadError::Status { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        tokio::time::sleep(self.backoff.max(retry_after).min(self.limits.max_backoff)).await;
        self.retries += 1;
        self.backoff *= 2;
        Ok(())
    }

    /// How often a download is retried after such an error.
    fn max_retries(&self, error: &DownloadError) -> usize {
        match error {
            DownloadError::Status { status, .. } if is_transient(*status) => self.limits.max_retries,
            // Datasets name servers that no longer exist. Retrying each of them would take minutes.
            DownloadError::TimedOut(_) => self.limits.max_retries.min(1),
            DownloadError::Interrupted(error) if error.is_timeout() => self.limits.max_retries.min(1),
            DownloadError::Interrupted(error) if !error.is_redirect() && !error.is_builder() => {
                self.limits.max_retries
            }
            _ => 0,
        }
    }
}

fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status)
}

/// The messages of an error and its causes. reqwest's outermost message says little.
fn join_causes(error: &reqwest::Error) -> String {
    let errors = std::iter::successors(Some(error as &(dyn StdError + 'static)), |&error| error.source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
