//! Files of web servers, each by its URL as somebody wrote it: `//`, `%2F`, `[` and a signature go out as they stand,
//! and of the answer nothing counts but its status and its body. All hosts share one client, for data sets name
//! thousands, and a client holds the system's certificates.

use std::error::Error as StdError;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use tokio::time::timeout;
use url::Url;

use crate::store::{Limits, limits_of};

/// An answer that keeps coming may take so many times as long as [`Limits::request`] allows for each piece of it.
const LONGEST: u32 = 10;

/// How long a connection is kept that nobody uses. A data set may name thousands of hosts and most of them once: kept for 90 s, as
/// is usual, connections to all of them would take every file that the process may open.
const IDLE: Duration = Duration::from_secs(3);

/// How many of them are kept for one host. One that has many of the images is asked again at once, so that few are not in use.
const IDLE_PER_HOST: usize = 16;

/// Where bytes go that come over the network.
pub trait Room {
    /// Waits until there is room for so many bytes in all.
    fn wait_for(&mut self, bytes: u64) -> impl Future<Output = ()> + Send;
}

/// Room without bounds.
impl Room for () {
    async fn wait_for(&mut self, _: u64) {}
}

/// Why a file cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// There is no such file.
    #[error("there is no such file")]
    NotFound,
    /// It is larger than the caller wants it.
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
    /// What was given is no URL.
    #[error("it is no URL: {0}")]
    Url(#[from] url::ParseError),
    /// The server refuses, or cannot at the moment.
    #[error("the server answered {status}")]
    Status {
        /// What it answered.
        status: StatusCode,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// Nothing came for too long.
    #[error("nothing came for {0:?}")]
    Late(Duration),
    /// There was no answer, or it broke off.
    #[error("{}", chain(.0))]
    Broken(#[source] reqwest::Error),
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        // A URL may hold a signature, and the caller knows it.
        Self::Broken(error.without_url())
    }
}

/// Whether a URI is that of a file on a web server.
pub fn is_url(uri: &str) -> bool {
    let scheme = uri.split_once("://").map_or("", |(scheme, _)| scheme);
    ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http))
}

/// Gets a whole file of `most` bytes at most, with the name and password that its URL may have. No byte is
/// taken before there is `room` for it.
///
/// # Errors
/// Any [`Failure`]; what may pass was tried again as often as the [`Limits`] say, but for time-outs: once.
pub async fn get(url: &str, most: u64, room: &mut impl Room) -> Result<Bytes, Failure> {
    let url = Url::parse(url)?;
    let limits = limits_of(&format!("{}/", url.origin().ascii_serialization()));
    let mut tries = Tries { pause: limits.first_pause, limits: &limits, begun: Instant::now(), again: 0 };
    loop {
        match attempt(&url, &limits, most, room).await {
            Ok(bytes) => return Ok(bytes),
            Err(failure) => tries.after(failure).await?,
        }
    }
}

async fn attempt(url: &Url, limits: &Limits, most: u64, room: &mut impl Room) -> Result<Bytes, Failure> {
    let request = client()?.get(url.clone()).timeout(limits.request * LONGEST);
    let late = |_| Failure::Late(limits.request);
    let mut response = timeout(limits.request, request.send()).await.map_err(late)??;
    check(&response)?;
    // Some servers do not say it.
    let announced = response.content_length().unwrap_or(0);
    let mut bytes = Vec::with_capacity(room_for(announced, most, room).await? as usize);
    while let Some(piece) = timeout(limits.request, response.chunk()).await.map_err(late)?? {
        room_for((bytes.len() + piece.len()) as u64, most, room).await?;
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

/// Waits until so many bytes in all may come, and gives their number back.
async fn room_for(bytes: u64, most: u64, room: &mut impl Room) -> Result<u64, Failure> {
    if bytes > most {
        return Err(Failure::TooLarge(most));
    }
    room.wait_for(bytes).await;
    Ok(bytes)
}

fn check(response: &Response) -> Result<(), Failure> {
    match response.status() {
        status if status.is_success() => Ok(()),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(Failure::NotFound),
        status => Err(Failure::Status { status, retry_after: retry_after(response.headers()) }),
    }
}

/// The header's seconds; a date is passed over.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

fn client() -> Result<&'static Client, Failure> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // Some servers refuse whoever does not say who they are.
    let name = concat!("tidemill/", env!("CARGO_PKG_VERSION"));
    let client = Client::builder()
        .user_agent(name)
        .connect_timeout(Limits::default().connect)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_PER_HOST)
        .build()?;
    Ok(CLIENT.get_or_init(|| client))
}

/// How often and since when a file was asked for.
struct Tries<'a> {
    limits: &'a Limits,
    begun: Instant,
    again: usize,
    pause: Duration,
}

impl Tries<'_> {
    /// Waits for the next try after a failure, or gives it back if there is none to come.
    async fn after(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.again >= self.most(&failure) || self.begun.elapsed() > self.limits.retry_for {
            return Err(failure);
        }
        let asked = match &failure {
            Failure::Status { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        tokio::time::sleep(self.pause.max(asked).min(self.limits.longest_pause)).await;
        self.again += 1;
        self.pause *= 2;
        Ok(())
    }

    /// How often a file is asked for again after such a failure.
    fn most(&self, failure: &Failure) -> usize {
        match failure {
            Failure::Status { status, .. } if may_pass(*status) => self.limits.retries,
            // Whoever names files of servers that are gone should not wait for each of them for minutes.
            Failure::Late(_) => self.limits.retries.min(1),
            Failure::Broken(error) if error.is_timeout() => self.limits.retries.min(1),
            Failure::Broken(error) if !error.is_redirect() && !error.is_builder() => self.limits.retries,
            _ => 0,
        }
    }
}

fn may_pass(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status)
}

/// An error and its causes: the first alone says little.
fn chain(error: &reqwest::Error) -> String {
    let errors = std::iter::successors(Some(error as &(dyn StdError + 'static)), |&error| error.source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
