//! Who sends a request: a rater or the administrator, by the token in its `Authorization` header.
//! There are no cookies, so no other site can send requests in a rater's name.

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;

use super::refusal::Refusal;
use super::state::ServerState;
use crate::token::hash_token;

/// The rater who sends a request.
#[derive(Debug, Clone, Copy)]
pub struct Rater(pub i64);

impl FromRequestParts<ServerState> for Rater {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &ServerState) -> Result<Self, Refusal> {
        let hash = read_token(parts).map(hash_token);
        let known = hash.and_then(|hash| state.raters.lock().ok()?.get(&hash).copied());
        let rater = match (known, hash) {
            (Some(rater), _) => rater,
            (None, Some(hash)) => {
                let found = state.database.call(move |database| database.find_rater(&hash)).await?;
                let Some(rater) = found else {
                    check_failed_login(state)?;
                    return Err(Refusal::NO_RATER);
                };
                if let Ok(mut raters) = state.raters.lock() {
                    raters.insert(hash, rater);
                }
                rater
            }
            (None, None) => return Err(Refusal::NO_RATER),
        };
        match state.requests.check_key(&rater).is_ok() {
            true => Ok(Self(rater)),
            false => Err(Refusal::TOO_MANY),
        }
    }
}

/// Somebody who may sign in. Checked before the body is read.
#[derive(Debug, Clone, Copy)]
pub struct NewRater;

impl FromRequestParts<ServerState> for NewRater {
    type Rejection = Refusal;

    async fn from_request_parts(_: &mut Parts, state: &ServerState) -> Result<Self, Refusal> {
        if !state.config.sign_in {
            return Err(Refusal(StatusCode::FORBIDDEN, "this study is by invitation".into()));
        }
        match state.sign_ins.check().is_ok() {
            true => Ok(Self),
            false => Err(Refusal::TOO_MANY),
        }
    }
}

/// A request of the administrator.
#[derive(Debug, Clone, Copy)]
pub struct Administrator;

impl FromRequestParts<ServerState> for Administrator {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &ServerState) -> Result<Self, Refusal> {
        match read_token(parts) {
            // Hashes are compared, so the time it takes says nothing of the token.
            Some(token) if hash_token(token) == state.admin_token_hash => Ok(Self),
            _ => {
                check_failed_login(state)?;
                Err(Refusal(StatusCode::UNAUTHORIZED, "the administrator's token is wrong".into()))
            }
        }
    }
}

/// Limits wrong tokens, so that nobody can try many.
fn check_failed_login(state: &ServerState) -> Result<(), Refusal> {
    match state.failed_logins.check().is_ok() {
        true => Ok(()),
        false => Err(Refusal::TOO_MANY),
    }
}

fn read_token(parts: &Parts) -> Option<&str> {
    parts.headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}
