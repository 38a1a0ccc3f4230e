//! What all requests share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter};

use super::database_thread::DatabaseThread;
use super::picture_reader::PictureReader;
use crate::study::StudyConfig;

/// What all requests share.
pub type ServerState = Arc<Server>;

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The study.
    pub config: StudyConfig,
    /// Writes, and reads that must see them.
    pub database: DatabaseThread,
    /// Reads of pictures.
    pub pictures: PictureReader,
    /// The known raters, by their tokens' hashes.
    pub raters: Mutex<HashMap<[u8; 32], i64>>,
    /// Limits the requests of each rater.
    pub requests: DefaultKeyedRateLimiter<i64>,
    /// Limits requests with wrong tokens, all together.
    pub failed_logins: DefaultDirectRateLimiter,
    /// Limits sign-ins, all together.
    pub sign_ins: DefaultDirectRateLimiter,
    /// The hash of the administrator's token.
    pub admin_token_hash: [u8; 32],
    /// Whether only this machine can reach the server.
    pub is_loopback: bool,
}
