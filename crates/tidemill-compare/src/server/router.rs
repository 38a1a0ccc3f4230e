//! Which address does what.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use super::pages::{ADMIN_PAGES, Page, RATER_PAGES, SERVER_SOURCE, respond};
use super::state::ServerState;
use super::{admin_api, headers, rater_api};

/// The largest body of a request in bytes.
const MAX_BODY: usize = 4096;

/// The addresses of the server.
pub fn router(state: ServerState) -> Router {
    let mut router = Router::new()
        .route("/api/study", get(rater_api::study))
        .route("/api/sign-in", post(rater_api::sign_in))
        .route("/api/next", post(rater_api::next))
        .route("/api/judge", post(rater_api::judge))
        .route("/api/admin/progress", get(admin_api::progress))
        .route("/api/admin/raters", post(admin_api::invite))
        .route("/picture/{key}", get(rater_api::picture));
    for page in RATER_PAGES.into_iter().chain(ADMIN_PAGES).chain([SERVER_SOURCE]) {
        router = router.route(&address(page), get(move || async move { respond(page) }));
    }
    router
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn(headers::limit_time))
        .layer(from_fn_with_state(state.clone(), headers::check_host))
        .layer(from_fn(headers::add_security_headers))
        .with_state(state)
}

fn address((name, ..): Page) -> String {
    match name {
        "index.html" => "/".into(),
        "admin.html" => "/admin".into(),
        _ => format!("/{name}"),
    }
}
