//! Accepts connections until the server is stopped.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use governor::{Quota, RateLimiter};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::database_thread::DatabaseThread;
use super::picture_reader::PictureReader;
use super::router::router;
use super::state::Server;
use crate::database::Database;
use crate::error::{Error, Result};

/// Connections at once. A browser opens up to six.
const MAX_CONNECTIONS: usize = 4096;

/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long open requests may take when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests of a rater: per second, and at once. A fast rater needs four a second.
const REQUESTS: (u32, u32) = (10, 40);

/// Requests with wrong tokens: per second, and at once.
const FAILED_LOGINS: (u32, u32) = (50, 400);

/// Sign-ins: per second, and at once.
const SIGN_INS: (u32, u32) = (2, 50);

/// Where a study is served, and to whom.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The address to listen at.
    pub address: IpAddr,
    /// The port; 0: any free one.
    pub port: u16,
    /// The hash of the administrator's token.
    pub admin_token_hash: [u8; 32],
}

/// Serves the study in a file until `stop` is done. Calls `on_ready` with the address once requests
/// are answered. All judgements that were acknowledged are on the disk, however the server ends.
///
/// # Errors
/// If there is no study, or the address cannot be used.
pub fn serve(
    path: &Path,
    options: &ServeOptions,
    on_ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let database = Database::open(path)?;
    let state = Arc::new(Server {
        config: database.config.clone(),
        database: DatabaseThread::start(database),
        pictures: PictureReader::new(path.to_owned()),
        raters: Default::default(),
        requests: RateLimiter::keyed(quota(REQUESTS)),
        failed_logins: RateLimiter::direct(quota(FAILED_LOGINS)),
        sign_ins: RateLimiter::direct(quota(SIGN_INS)),
        admin_token_hash: options.admin_token_hash,
        is_loopback: options.address.is_loopback(),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::Server)?;
    runtime.block_on(async {
        let listener = TcpListener::bind((options.address, options.port)).await.map_err(Error::Server)?;
        on_ready(listener.local_addr().map_err(Error::Server)?);
        accept(listener, router(state), stop).await;
        Ok(())
    })
}

fn quota((per_second, at_once): (u32, u32)) -> Quota {
    let positive = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
    Quota::per_second(positive(per_second)).allow_burst(positive(at_once))
}

async fn accept(listener: TcpListener, router: axum::Router, stop: impl Future<Output = ()>) {
    let service = TowerToHyperService::new(router);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (Ok((stream, _)), Ok(permit)) = (accepted, connections.clone().try_acquire_owned()) else {
            // No file descriptors or too many connections: those that are open go on.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let connection = graceful.watch(open_connection(stream, service.clone()));
        tokio::spawn(async move {
            // Clients go away at any time.
            let _ = connection.await;
            drop(permit);
        });
    }
    let _ = tokio::time::timeout(STOP_TIMEOUT, graceful.shutdown()).await;
}

fn open_connection(
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
) -> http1::Connection<TokioIo<TcpStream>, TowerToHyperService<axum::Router>> {
    // Small answers do not wait for more.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.serve_connection(TokioIo::new(stream), service)
}
