//! The server: its thread pool, a log of requests with the bytes served, and a queue of faults.
//! Each fault affects one request.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, HttpRequest, HttpResponse, S3Result, s3_error};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::s3::google;
use crate::s3::object_map::ObjectMap;

const ACCESS_KEY: &str = "tidemill-access-key";
const SECRET_KEY: &str = "tidemill-secret-key";

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is served normally.
    None,
    /// The server answers with this status and does nothing.
    Status(u16),
    /// The server closes the connection before it reads the request.
    Refuse,
    /// The server does what is requested, and then closes the connection without an answer.
    LoseAnswer,
    /// The server closes the connection after the headers and this many bytes of the body.
    BreakBody(usize),
    /// The server answers after this time.
    Delay(Duration),
}

/// A request that was served or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT` and so on.
    pub method: String,
    /// The object's key; empty for listings.
    pub key: String,
    /// The request's headers, by lower-case name.
    pub headers: BTreeMap<String, String>,
    /// Bytes of the answer's body that were sent.
    pub bytes: u64,
    /// The status of the answer; `None` if the connection was closed.
    pub status: Option<u16>,
}

/// An S3 server on loopback. It stops when dropped.
pub struct S3Server {
    address: SocketAddr,
    objects: ObjectMap,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Shared {
    faults: Mutex<VecDeque<Fault>>,
    /// The delay of all answers.
    latency: Mutex<Duration>,
    requests: Mutex<Vec<Request>>,
}

/// Requires signatures, except for reads of the bucket `public` and requests in Google's API.
struct AccessPolicy;

#[async_trait::async_trait]
impl S3Access for AccessPolicy {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        let is_read = matches!(request.method().as_str(), "GET" | "HEAD");
        match request.credentials() {
            Some(_) => Ok(()),
            None if google::is_google(request.headers()) => Ok(()),
            None if is_read && request.uri().path().starts_with("/public/") => Ok(()),
            None => Err(s3_error!(AccessDenied, "Signature is required")),
        }
    }
}

impl S3Server {
    /// Starts a server with these buckets. A bucket named `public` can be read without credentials.
    pub fn start(buckets: &[&str]) -> Self {
        let objects = ObjectMap::default();
        buckets.iter().for_each(|bucket| objects.create_bucket(bucket));
        let mut builder = S3ServiceBuilder::new(objects.clone());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        builder.set_access(AccessPolicy);
        let (service, shared) = (builder.build(), Arc::<Shared>::default());
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(accept(listener, service, shared.clone()));
        Self { address, objects, shared, runtime: Some(runtime) }
    }

    /// The environment variables with the server's endpoint and credentials.
    pub fn settings(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// The environment variables with the endpoint of Google's API for the same buckets.
    pub fn google_settings(&self) -> [(&'static str, String); 2] {
        [
            ("GOOGLE_BASE_URL", format!("http://{}{}", self.address, google::PREFIX)),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", google::SERVICE_ACCOUNT.into()),
        ]
    }

    /// Stores an object directly, without a request.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) {
        self.objects.put(bucket, key, bytes.into());
    }

    /// The keys of a bucket, sorted.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        self.objects.keys(bucket)
    }

    /// Refuses all deletions from now on.
    pub fn forbid_deletes(&self) {
        self.objects.forbid_deletes();
    }

    /// The number of multipart uploads that were neither completed nor aborted.
    pub fn open_uploads(&self) -> usize {
        self.objects.open_uploads()
    }

    /// Applies these faults to the next requests, one fault per request, in order.
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.faults.lock().unwrap().extend(faults);
    }

    /// Delays every answer from now on.
    pub fn delay_all(&self, latency: Duration) {
        *self.shared.latency.lock().unwrap() = latency;
    }

    /// Removes the remaining faults, and returns their number.
    pub fn stop_failing(&self) -> usize {
        self.shared.faults.lock().unwrap().drain(..).count()
    }

    /// The requests since the last call, in the order of their answers.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn accept(
    listener: TcpListener,
    service: S3Service,
    shared: Arc<Shared>,
) -> Result<Infallible, std::io::Error> {
    loop {
        let (socket, _) = listener.accept().await?;
        let (service, shared) = (service.clone(), shared.clone());
        let serve = service_fn(move |request| serve(request, service.clone(), shared.clone()));
        // Faults end connections with an error.
        tokio::spawn(async move {
            http1::Builder::new().serve_connection(TokioIo::new(socket), serve).await.ok()
        });
    }
}

/// Answers one request, or applies the next fault. An error closes the connection.
async fn serve(
    request: hyper::Request<Incoming>,
    service: S3Service,
    shared: Arc<Shared>,
) -> Result<HttpResponse, HttpError> {
    let fault = shared.faults.lock().unwrap().pop_front();
    let latency = *shared.latency.lock().unwrap();
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let mut request = request.map(Body::from);
    google::translate(&mut request);
    let key = request.uri().path().trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    let mut entry = Request {
        method: request.method().to_string(),
        key: key.to_owned(),
        headers: (request.headers().iter())
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect(),
        bytes: 0,
        status: None,
    };
    let answer = answer(request, service, fault, &mut entry).await;
    shared.requests.lock().unwrap().push(entry);
    answer
}

async fn answer(
    request: HttpRequest,
    service: S3Service,
    fault: Option<Fault>,
    entry: &mut Request,
) -> Result<HttpResponse, HttpError> {
    match fault {
        Some(Fault::Refuse) => return Err(connection_closed()),
        Some(Fault::Status(status)) => {
            // A client that is still sending could take an early answer for a broken connection,
            // and retry.
            let _ = BodyExt::collect(request.into_body()).await;
            entry.status = Some(status);
            return Ok(HttpResponse::new(Body::empty())).map(|mut response| {
                *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap();
                response
            });
        }
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        Some(Fault::None | Fault::LoseAnswer | Fault::BreakBody(_)) | None => {}
    }
    let (head, body) = service.call(request).await?.into_parts();
    let body = BodyExt::collect(body).await.map_err(HttpError::new)?.to_bytes();
    let sent = match fault {
        Some(Fault::LoseAnswer) => return Err(connection_closed()),
        Some(Fault::BreakBody(bytes)) => bytes.min(body.len()),
        _ => body.len(),
    };
    entry.status = Some(head.status.as_u16());
    entry.bytes = sent as u64;
    let body = match sent < body.len() {
        false => Body::from(body),
        true => {
            let chunk = futures::stream::iter([Ok(Frame::data(body.slice(..sent)))]);
            // Gives the chunk time to be sent before the connection closes.
            let end = futures::stream::once(async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(std::io::Error::other("the connection breaks here"))
            });
            Body::http_body_unsync(StreamBody::new(chunk.chain(end)))
        }
    };
    Ok(HttpResponse::from_parts(head, body))
}

fn connection_closed() -> HttpError {
    HttpError::new(Box::new(std::io::Error::other("the connection is closed on purpose")))
}
