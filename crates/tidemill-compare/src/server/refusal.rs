//! Requests that are refused.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::Error;

/// Why a request is refused: the status, and the message.
#[derive(Debug)]
pub struct Refusal(pub StatusCode, pub String);

impl Refusal {
    /// The request has no token, or one that nobody has.
    pub const NO_RATER: Self = Self(StatusCode::UNAUTHORIZED, String::new());
    /// Too many requests.
    pub const TOO_MANY: Self = Self(StatusCode::TOO_MANY_REQUESTS, String::new());
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let message = match self.0 {
            StatusCode::UNAUTHORIZED if self.1.is_empty() => "open the link that you were given".into(),
            StatusCode::TOO_MANY_REQUESTS => "too many requests; wait a second".into(),
            _ => self.1,
        };
        (self.0, Json(json!({ "error": message }))).into_response()
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        tracing::error!("{error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR, "the server failed; its log says why".into())
    }
}
