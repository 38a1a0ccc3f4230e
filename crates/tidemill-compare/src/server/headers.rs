//! What a browser may do with our answers, and which hosts' names we answer to.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::state::ServerState;

/// Only our own scripts, styles and pictures; no frames, forms or other sites.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Adds the headers to every answer. What does not say how long it may be kept is not kept.
pub async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Ends requests whose body does not come.
pub async fn limit_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    answer.unwrap_or_else(|_| (StatusCode::REQUEST_TIMEOUT, "the request takes too long").into_response())
}

/// On loopback, refuses other hosts' names: a page elsewhere whose name resolves to this machine must
/// not reach the study.
pub async fn check_host(State(state): State<ServerState>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    if state.is_loopback && !is_loopback_name(host) {
        return (StatusCode::MISDIRECTED_REQUEST, "this server answers on this machine only").into_response();
    }
    next.run(request).await
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    matches!(name, "localhost" | "::1") || name.parse().is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.0.0.2"] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example:8000", "10.0.0.1", "[::2]:8000"] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }
}
