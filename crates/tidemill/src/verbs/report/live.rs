//! The page during a run: made anew for each request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Makes the page.
pub type MakePage = Arc<dyn Fn() -> Result<String> + Send + Sync>;

/// Pause between two looks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The page needs nothing from other places, so nothing else is allowed. The browser asks again every
/// 15 seconds, also after an error.
const HEADERS: [(HeaderName, &str); 3] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::REFRESH, "15"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:",
    ),
];

/// Serves the page until a signal comes.
///
/// # Errors
/// If nobody can listen at the address.
pub fn serve(address: SocketAddr, page: MakePage, reporter: &Reporter) -> Result<()> {
    let failed =
        |e: std::io::Error| Error::Arguments(format!("cannot listen at {address}: {e}; give another one"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        reporter.report(format!("the report is at http://{address}; ctrl-c ends this"));
        let router = Router::new().route("/", get(answer)).with_state((address, page));
        let stop = StopSignal::watch();
        // Requests that are under way end with the process.
        tokio::select! {
            served = async { axum::serve(listener, router).await } => served.map_err(failed),
            () = async {
                while !stop.is_raised() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            } => Ok(()),
        }
    })
}

async fn answer(State((own, page)): State<(SocketAddr, MakePage)>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_own_name(host, own) {
        return (StatusCode::FORBIDDEN, "this address is for this machine only").into_response();
    }
    // Reading a run's folder takes a while.
    match tokio::task::spawn_blocking(move || page()).await {
        Ok(Ok(page)) => (HEADERS, axum::response::Html(page)).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, HEADERS, error.to_string()).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether a request is for a name of this server. On loopback only this machine's names are: otherwise
/// a web site could read the report through a name of its own.
fn is_own_name(host: &str, own: SocketAddr) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    !own.ip().is_loopback() || ["localhost", "127.0.0.1", "[::1]"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::is_own_name;

    #[test]
    fn on_loopback_other_names_are_refused() {
        let [loopback, open] = ["127.0.0.1:8766", "0.0.0.0:80"].map(|address| address.parse().unwrap());
        for (host, expected) in [
            ("127.0.0.1:8766", true),
            ("localhost", true),
            ("[::1]:1", true),
            ("evil.example:8766", false),
            ("", false),
        ] {
            assert_eq!((is_own_name(host, loopback), is_own_name(host, open)), (expected, true), "{host}");
        }
    }
}
