//! The stores behind URIs: one per bucket and process, so that connections and credentials are shared. Credentials
//! come from the environment; time-outs and retries are chosen here, once for all of Tidemill.

use std::collections::HashMap;
use std::future::Future;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectMeta, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

use crate::error::{Error, Result, causes};
use crate::runtime::telling;

/// How long a request may take and how often it is tried again: after an answer 5xx or 429, a time-out, a refused or
/// reset connection. A body that breaks off is asked for again from where it broke, as long as the object's entity
/// tag is the same; a store that sends no entity tags (some HTTP servers) gets no second chance within a body.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Time to connect.
    pub connect: Duration,
    /// Time from sending a request to the last byte of its answer. A body that needs longer goes on in another
    /// request, so this bounds the slowest link at one part (8 MiB) per `request` when writing.
    pub request: Duration,
    /// Bytes of a larger object that one request asks for when all of it is wanted. Each has its own retries and time,
    /// so this bounds the slowest link at four of them per `retry_for` when reading.
    pub range: usize,
    /// How often a request is tried again, if there is time: by default more often than pauses leave time for.
    pub retries: usize,
    /// Time from the first try after which none follows. Credentials are not renewed in between.
    pub retry_for: Duration,
    /// The same for asking whoever hands out credentials, who is not there if there are none.
    pub credentials_for: Duration,
    /// The first pause between two tries.
    pub first_pause: Duration,
    /// The longest pause; each is a random time up to [`GROWTH`] times the one before.
    pub longest_pause: Duration,
}

/// Pauses are drawn evenly between the first one and so many times the one before. With 2 they would not grow: half
/// of it is what is drawn on average.
const GROWTH: f64 = 4.0;

/// After this it is said that a store is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(15);

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(60),
            range: 32 << 20,
            retries: 60,
            retry_for: Duration::from_secs(180),
            credentials_for: Duration::from_secs(20),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(15),
        }
    }
}

impl Limits {
    /// Retries of requests that may be tried again for so long.
    fn retry(&self, time: Duration) -> RetryConfig {
        let backoff =
            BackoffConfig { init_backoff: self.first_pause, max_backoff: self.longest_pause, base: GROWTH };
        RetryConfig { backoff, max_retries: self.retries, retry_timeout: time }
    }

    /// A count of retries that starts anew, and its time as well.
    pub(crate) fn retries(&self) -> Retries {
        Retries {
            left: self.retries,
            until: Instant::now() + self.retry_for,
            pause: self.first_pause,
            longest_pause: self.longest_pause,
        }
    }

    /// Warns if an operation on an object takes long: a store that fails is tried for minutes, and silence looks like a
    /// process that hangs.
    pub(crate) async fn telling<T>(
        &self,
        action: &str,
        uri: impl FnOnce() -> String,
        operation: impl Future<Output = T>,
    ) -> T {
        let say = || {
            let (uri, after, limit) = (uri(), TOLD_AFTER.as_secs(), self.retry_for.as_secs());
            tracing::warn!(
                "{action} {uri}: not done after {after} s; a store that fails is tried for {limit} s"
            );
        };
        telling(TOLD_AFTER, say, operation).await
    }

    fn client(&self, plain_http: bool) -> ClientOptions {
        ClientOptions::new()
            .with_connect_timeout(self.connect)
            .with_timeout(self.request)
            .with_allow_http(plain_http)
    }
}

/// Retries of what object_store does not try again by itself: requests that may have been served although the answer
/// was lost, and answers that are no object and break off.
pub(crate) struct Retries {
    left: usize,
    until: Instant,
    pause: Duration,
    longest_pause: Duration,
}

impl Retries {
    /// Waits for the next try after an error, or gives the error back if there is none to come.
    pub async fn after(&mut self, error: object_store::Error) -> object_store::Result<()> {
        let lost = causes::<HttpError>(&error)
            .next()
            .is_some_and(|error| matches!(error.kind(), HttpErrorKind::Timeout | HttpErrorKind::Interrupted));
        if !lost || self.left == 0 || Instant::now() > self.until {
            return Err(error);
        }
        tracing::info!("{error}; trying again");
        tokio::time::sleep(self.pause).await;
        self.left -= 1;
        self.pause = (2 * self.pause).min(self.longest_pause);
        Ok(())
    }
}

/// All objects below a folder.
pub(crate) async fn list(
    store: &dyn ObjectStore,
    folder: &Path,
    limits: &Limits,
) -> object_store::Result<Vec<ObjectMeta>> {
    let mut retries = limits.retries();
    loop {
        match store.list(Some(folder)).try_collect().await {
            Ok(found) => return Ok(found),
            Err(error) => retries.after(error).await?,
        }
    }
}

/// A store and the limits it was opened with.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub store: Arc<dyn ObjectStore>,
    pub limits: Limits,
}

/// Connections by root, such as `s3://bucket/`.
static CONNECTIONS: Mutex<Option<HashMap<String, Connection>>> = Mutex::new(None);

/// Connects to the bucket of `uri` with settings of its own, named like the environment variables, instead of the
/// environment's. From then on everything in this process that opens a URI of the bucket uses them.
///
/// # Errors
/// [`Error::Uri`] if the scheme is unknown or the settings make no sense.
pub fn connect(uri: &str, settings: &[(&str, String)], limits: Limits) -> Result<()> {
    let (root, _) = root_of(uri)?;
    let settings: Vec<_> =
        settings.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
    let store = build(&root, &settings, &limits)?;
    let mut connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    connections.get_or_insert_default().insert(root, Connection { store, limits });
    Ok(())
}

/// The connection to a bucket; made with the environment's settings if there is none yet.
pub(crate) fn connection(root: &str) -> Result<Connection> {
    let mut connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let connections = connections.get_or_insert_default();
    if let Some(connection) = connections.get(root) {
        return Ok(connection.clone());
    }
    let limits = Limits::default();
    let connection = Connection { store: build(root, &environment(std::env::vars()), &limits)?, limits };
    connections.insert(root.to_owned(), connection.clone());
    Ok(connection)
}

/// The limits that [`connect`] was given for a bucket or host; the usual ones if there were none.
pub(crate) fn limits_of(root: &str) -> Limits {
    let connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let connection = connections.as_ref().and_then(|connections| connections.get(root));
    connection.map(|connection| connection.limits.clone()).unwrap_or_default()
}

/// What precedes an object's path in a URI with a scheme, and the path.
pub(crate) fn root_of(uri: &str) -> Result<(String, String)> {
    let (scheme, rest) = uri
        .split_once("://")
        .ok_or_else(|| Error::Uri { uri: uri.into(), problem: "is a local path, no bucket".into() })?;
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((format!("{scheme}://{bucket}/"), path.to_owned()))
}

/// The environment's settings for stores. Only names with a provider's prefix count: object_store would take a
/// variable `TOKEN` or `REGION` as its own.
fn environment(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    variables
        .map(|(name, value)| (name.to_lowercase(), value))
        .filter(|(name, _)| ["aws_", "google_", "azure_"].iter().any(|prefix| name.starts_with(prefix)))
        .collect()
}

/// Whether the settings name an endpoint without TLS, as test servers and stores within a cluster have it.
fn plain_endpoint(settings: &[(String, String)]) -> bool {
    let endpoints = [
        "aws_endpoint",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
        "azure_endpoint",
        "azure_storage_endpoint",
    ];
    settings.iter().any(|(name, value)| endpoints.contains(&name.as_str()) && value.starts_with("http://"))
}

fn build(root: &str, settings: &[(String, String)], limits: &Limits) -> Result<Arc<dyn ObjectStore>> {
    let fail = |problem: String| Error::Uri { uri: root.into(), problem };
    let url = Url::parse(root).map_err(|e| fail(e.to_string()))?;
    // Any http server, whoever runs it: object_store would guess S3 and Azure from some host names.
    let scheme = match url.scheme() {
        "http" | "https" => Ok(ObjectStoreScheme::Http),
        _ => ObjectStoreScheme::parse(&url).map(|(scheme, _)| scheme),
    };
    let (retry, brief) = (limits.retry(limits.retry_for), limits.retry(limits.credentials_for));
    let client = limits.client(url.scheme() == "http" || plain_endpoint(settings));
    // Stores pass their retries on to what gives them credentials, so that comes from another one with its own.
    let store = match scheme {
        Ok(ObjectStoreScheme::AmazonS3) => {
            let builder = AmazonS3Builder::new().with_url(root).with_retry(retry).with_client_options(client);
            let builder = with_settings(builder, settings, AmazonS3Builder::with_config);
            let asks = builder.clone().with_retry(brief).build();
            asks.and_then(|asks| builder.with_credentials(asks.credentials().clone()).build()).map(shared)
        }
        Ok(ObjectStoreScheme::GoogleCloudStorage) => {
            let builder =
                GoogleCloudStorageBuilder::new().with_url(root).with_retry(retry).with_client_options(client);
            let builder = with_settings(builder, settings, GoogleCloudStorageBuilder::with_config);
            let asks = builder.clone().with_retry(brief).build();
            asks.and_then(|asks| builder.with_credentials(asks.credentials().clone()).build()).map(shared)
        }
        Ok(ObjectStoreScheme::MicrosoftAzure) => {
            let builder =
                MicrosoftAzureBuilder::new().with_url(root).with_retry(retry).with_client_options(client);
            let builder = with_settings(builder, settings, MicrosoftAzureBuilder::with_config);
            let asks = builder.clone().with_retry(brief).build();
            asks.and_then(|asks| builder.with_credentials(asks.credentials().clone()).build()).map(shared)
        }
        Ok(ObjectStoreScheme::Http) => HttpBuilder::new()
            .with_url(root)
            .with_retry(retry)
            .with_client_options(client)
            .build()
            .map(shared),
        _ => {
            return Err(fail(format!(
                "the scheme `{}` is not known; give a local path, file://, s3://, gs://, az://, abfss:// or http(s)://",
                url.scheme()
            )));
        }
    };
    store.map_err(|e| fail(format!("cannot be opened: {e}")))
}

/// Settings that the store does not know, other providers' for instance, are passed over.
fn with_settings<B, K: FromStr>(builder: B, settings: &[(String, String)], set: fn(B, K, String) -> B) -> B {
    let known = settings.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.clone())));
    known.fold(builder, |builder, (key, value)| set(builder, key, value))
}

fn shared(store: impl ObjectStore) -> Arc<dyn ObjectStore> {
    Arc::new(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_providers_variables_are_settings() {
        let variables =
            [("AWS_REGION", "eu-west-1"), ("TOKEN", "x"), ("Google_Service_Account", "y"), ("PATH", "z")];
        let settings =
            environment(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        let names: Vec<_> = settings.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["aws_region", "google_service_account"]);
    }

    #[test]
    fn an_endpoint_without_tls_needs_no_further_variable() {
        for (name, value, plain) in [
            ("aws_endpoint_url", "http://localhost:9000", true),
            ("aws_endpoint_url_s3", "http://localhost:9000", true),
            ("aws_endpoint_url", "https://s3.example.com", false),
            ("aws_metadata_endpoint", "http://169.254.169.254", false),
        ] {
            assert_eq!(plain_endpoint(&[(name.to_owned(), value.to_owned())]), plain, "{name}={value}");
        }
    }

    #[test]
    fn every_scheme_opens_and_unknown_ones_are_refused_by_name() {
        let azure = [("azure_storage_account_name".to_owned(), "account".to_owned())];
        for root in
            ["s3://b/", "s3a://b/", "gs://b/", "az://c/", "abfss://c@a.dfs.core.windows.net/", "https://h/"]
        {
            build(root, &azure, &Limits::default()).unwrap();
        }
        let message = build("ftp://host/", &[], &Limits::default()).unwrap_err().to_string();
        assert!(message.contains("`ftp`") && message.contains("s3://"), "{message}");
    }
}
