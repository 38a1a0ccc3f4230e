//! Requests that are refused.

use std::borrow::Cow;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::Error;

/// Why a request is refused: the status, and the message.
#[derive(Debug)]
pub struct Refusal(pub StatusCode, pub Cow<'static, str>);

impl Refusal {
    /// The request has no token, or one that nobody has.
    pub const NO_RATER: Self =
        Self(StatusCode::UNAUTHORIZED, Cow::Borrowed("open the link that you were given"));
    /// Too many requests.
    pub const TOO_MANY: Self =
        Self(StatusCode::TOO_MANY_REQUESTS, Cow::Borrowed("too many requests; wait a second"));
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        tracing::error!("{error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR, "the server failed; its log says why".into())
    }
}
