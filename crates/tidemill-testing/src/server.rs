//! The server: one thread pool per server, a log of requests with the bytes served, and a queue of faults, each of
//! which spoils one request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::RANGE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, HttpRequest, HttpResponse, S3Result, s3_error};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::objects::Objects;

const ACCESS_KEY: &str = "tidemill-access-key";
const SECRET_KEY: &str = "tidemill-secret-key";

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is served as usual.
    None,
    /// This status instead of an answer; nothing is done.
    Status(u16),
    /// The connection is closed before the request is looked at.
    Refuse,
    /// The request is served, and the connection closed instead of answering.
    LoseAnswer,
    /// The connection is closed after the headers and so many bytes of the body.
    BreakBody(usize),
    /// The answer comes after this time.
    Delay(Duration),
}

/// A request that was served, or spoilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT` and so on.
    pub method: String,
    /// The key in the bucket; empty for listings.
    pub key: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// Bytes of the body that were sent.
    pub bytes: u64,
    /// The status answered; none if the connection was closed.
    pub status: Option<u16>,
}

/// An S3 server on loopback, which ends when dropped.
pub struct S3Server {
    address: SocketAddr,
    objects: Objects,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Shared {
    faults: Mutex<VecDeque<Fault>>,
    /// By which all answers are late.
    latency: Mutex<Duration>,
    requests: Mutex<Vec<Request>>,
}

/// Who may do what.
struct Access;

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        let reads = matches!(request.method().as_str(), "GET" | "HEAD");
        match request.credentials() {
            None if !reads || !request.uri().path().starts_with("/public/") => {
                Err(s3_error!(AccessDenied, "Signature is required"))
            }
            _ => Ok(()),
        }
    }
}

impl S3Server {
    /// Starts a server with these buckets. One called `public` may be read without credentials.
    pub fn start(buckets: &[&str]) -> Self {
        let objects = Objects::default();
        buckets.iter().for_each(|bucket| objects.create_bucket(bucket));
        let mut builder = S3ServiceBuilder::new(objects.clone());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        builder.set_access(Access);
        let (service, shared) = (builder.build(), Arc::<Shared>::default());
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(accept(listener, service, shared.clone()));
        Self { address, objects, shared, runtime: Some(runtime) }
    }

    /// The environment variables that lead here.
    pub fn settings(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// Stores an object without a request.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) {
        self.objects.put(bucket, key, bytes.into());
    }

    /// The keys of a bucket, sorted.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        self.objects.keys(bucket)
    }

    /// Refuses to delete anything from now on.
    pub fn forbid_deletes(&self) {
        self.objects.forbid_deletes();
    }

    /// Uploads in parts that were begun and neither completed nor aborted.
    pub fn open_uploads(&self) -> usize {
        self.objects.open_uploads()
    }

    /// Spoils the next requests, each with one of the faults, in their order.
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.faults.lock().unwrap().extend(faults);
    }

    /// Makes every answer late from now on.
    pub fn delay_all(&self, latency: Duration) {
        *self.shared.latency.lock().unwrap() = latency;
    }

    /// Spoils nothing any more; gives the number of faults that were still to come.
    pub fn stop_failing(&self) -> usize {
        self.shared.faults.lock().unwrap().drain(..).count()
    }

    /// The requests since the last call, in the order in which they were answered.
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
        // A connection that ends in an error is what faults are for.
        tokio::spawn(async move {
            http1::Builder::new().serve_connection(TokioIo::new(socket), serve).await.ok()
        });
    }
}

/// Answers one request, unless a fault has its turn. An error closes the connection.
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
    let key = request.uri().path().trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    let mut entry = Request {
        method: request.method().to_string(),
        key: key.to_owned(),
        range: request.headers().get(RANGE).map(|range| range.to_str().unwrap().to_owned()),
        bytes: 0,
        status: None,
    };
    let answer = answer(request.map(Body::from), service, fault, &mut entry).await;
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
        Some(Fault::Refuse) => return Err(closed()),
        Some(Fault::Status(status)) => {
            // Who is still sending may take an early answer for a broken connection, and ask again.
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
        Some(Fault::LoseAnswer) => return Err(closed()),
        Some(Fault::BreakBody(bytes)) => bytes.min(body.len()),
        _ => body.len(),
    };
    entry.status = Some(head.status.as_u16());
    entry.bytes = sent as u64;
    let body = match sent < body.len() {
        false => Body::from(body),
        true => {
            let piece = futures::stream::iter([Ok(Frame::data(body.slice(..sent)))]);
            // Time for the piece to be sent before the connection is closed.
            let end = futures::stream::once(async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(std::io::Error::other("the connection breaks here"))
            });
            Body::http_body_unsync(StreamBody::new(piece.chain(end)))
        }
    };
    Ok(HttpResponse::from_parts(head, body))
}

fn closed() -> HttpError {
    HttpError::new(Box::new(std::io::Error::other("the connection is closed on purpose")))
}
