//! The requests of raters.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::access::{NewRater, Rater};
use super::refusal::Refusal;
use super::state::ServerState;
use crate::database::{Assignment, Judgement, Progress, StoreOutcome};

/// Comparisons that a page has at once: one that is shown, and one that is loaded meanwhile.
const COMPARISONS_AT_ONCE: usize = 2;

/// The longest name of a rater, in characters.
const MAX_NAME: usize = 40;

pub async fn study(State(state): State<ServerState>) -> Json<Value> {
    Json(state.config.to_rater_json())
}

/// The next comparisons of a rater.
#[derive(Debug, Serialize)]
pub struct Next {
    assignments: Vec<Assignment>,
    progress: Progress,
    /// Whether others were shown comparisons that they may not judge.
    is_waiting: bool,
}

pub async fn next(State(state): State<ServerState>, Rater(rater): Rater) -> Result<Json<Next>, Refusal> {
    let next = state.database.call(move |database| {
        let assignments = database.assign(rater, COMPARISONS_AT_ONCE)?;
        let progress = database.read_progress(rater)?;
        Ok(Next { assignments, progress, is_waiting: database.has_open_assignments()? })
    });
    Ok(Json(next.await?))
}

pub async fn judge(
    State(state): State<ServerState>,
    Rater(rater): Rater,
    Json(judgement): Json<Judgement>,
) -> Result<Json<Value>, Refusal> {
    let outcome =
        state.database.call(move |database| database.store_judgement(rater, &judgement, true)).await?;
    match outcome {
        StoreOutcome::Unknown => Err(Refusal(StatusCode::NOT_FOUND, "you were not asked this".into())),
        StoreOutcome::Stored | StoreOutcome::Repeated | StoreOutcome::Corrected => {
            Ok(Json(json!({ "stored": true })))
        }
    }
}

/// A new rater.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    name: String,
}

pub async fn sign_in(
    State(state): State<ServerState>,
    _: NewRater,
    Json(SignIn { name }): Json<SignIn>,
) -> Result<Json<Value>, Refusal> {
    let name = name.trim().to_owned();
    if name.is_empty() || name.chars().count() > MAX_NAME {
        let message = format!("choose a name of 1 to {MAX_NAME} characters");
        return Err(Refusal(StatusCode::UNPROCESSABLE_ENTITY, message.into()));
    }
    let (_, token) = state.database.call(move |database| database.add_rater(Some(&name))).await?;
    Ok(Json(json!({ "token": token })))
}

/// A picture. Its key is known only to those who were shown it.
pub async fn picture(State(state): State<ServerState>, Path(key): Path<String>) -> Result<Response, Refusal> {
    let missing = || Refusal(StatusCode::NOT_FOUND, "there is no such picture".into());
    let content = state.pictures.read(key).await?.ok_or_else(missing)?;
    let headers = [(CONTENT_TYPE, "image/webp"), (CACHE_CONTROL, "private, max-age=86400, immutable")];
    Ok((headers, content).into_response())
}
