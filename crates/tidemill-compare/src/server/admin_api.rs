//! The requests of the administrator.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::access::Administrator;
use super::refusal::Refusal;
use super::state::ServerState;

/// The most raters that are invited at once.
const MAX_INVITATIONS: usize = 200;

pub async fn progress(State(state): State<ServerState>, _: Administrator) -> Result<Json<Value>, Refusal> {
    let (raters, total) =
        state.database.call(|database| Ok((database.list_raters()?, database.count_progress()?))).await?;
    Ok(Json(json!({ "raters": raters, "judged": total.judged, "wanted": total.judged + total.left })))
}

/// How many raters are invited.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    count: usize,
}

pub async fn invite(
    State(state): State<ServerState>,
    _: Administrator,
    Json(Invitation { count }): Json<Invitation>,
) -> Result<Json<Value>, Refusal> {
    if !(1..=MAX_INVITATIONS).contains(&count) {
        let message = format!("invite 1 to {MAX_INVITATIONS} raters");
        return Err(Refusal(StatusCode::UNPROCESSABLE_ENTITY, message.into()));
    }
    let tokens = state.database.call(move |database| {
        (0..count).map(|_| Ok(database.add_rater(None)?.1)).collect::<crate::Result<Vec<String>>>()
    });
    Ok(Json(json!({ "tokens": tokens.await? })))
}
