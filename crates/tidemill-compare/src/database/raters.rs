//! Who judges. The database keeps the hashes of tokens, so that whoever reads it cannot judge.

use rusqlite::{OptionalExtension, params};
use serde::Serialize;

use super::connection::{Database, now};
use crate::error::Result;
use crate::token::{hash_token, random_key};

/// What a rater has done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RaterProgress {
    /// The rater's number.
    pub rater: i64,
    /// The name of their choice.
    pub name: Option<String>,
    /// Comparisons that are judged, attention checks too.
    pub judged: i64,
}

impl Database {
    /// Adds a rater and returns the token, which is stored nowhere.
    ///
    /// # Errors
    /// If the database fails.
    pub fn add_rater(&self, name: Option<&str>) -> Result<(i64, String)> {
        let token = random_key();
        self.connection.execute(
            "INSERT INTO rater (token_hash, name, created) VALUES (?1, ?2, ?3)",
            params![hash_token(&token), name, now()],
        )?;
        Ok((self.connection.last_insert_rowid(), token))
    }

    /// Removes a rater who was shown nothing.
    ///
    /// # Errors
    /// If the database fails.
    pub fn remove_rater(&self, rater: i64) -> Result<()> {
        self.connection.execute("DELETE FROM rater WHERE id = ?1", [rater])?;
        Ok(())
    }

    /// The rater with a token.
    ///
    /// # Errors
    /// If the database fails.
    pub fn find_rater(&self, token_hash: &[u8; 32]) -> Result<Option<i64>> {
        let mut find = self.connection.prepare_cached("SELECT id FROM rater WHERE token_hash = ?1")?;
        Ok(find.query_row([token_hash], |row| row.get(0)).optional()?)
    }

    /// The hash of a rater's token.
    ///
    /// # Errors
    /// If the database fails, or there is no such rater.
    pub fn read_token_hash(&self, rater: i64) -> Result<[u8; 32]> {
        let mut read = self.connection.prepare_cached("SELECT token_hash FROM rater WHERE id = ?1")?;
        Ok(read.query_row([rater], |row| row.get(0))?)
    }

    /// All raters, and what they have done.
    ///
    /// # Errors
    /// If the database fails.
    pub fn list_raters(&self) -> Result<Vec<RaterProgress>> {
        let mut list = self.connection.prepare(
            "SELECT rater.id, name, (SELECT count(*) FROM assignment WHERE assignment.rater = rater.id AND is_judged = 1) \
             FROM rater ORDER BY rater.id",
        )?;
        let raters = list.query_map([], |row| {
            Ok(RaterProgress { rater: row.get(0)?, name: row.get(1)?, judged: row.get(2)? })
        })?;
        Ok(raters.collect::<rusqlite::Result<_>>()?)
    }

    /// Makes a new token for the administrator, and returns it. The old one is void.
    ///
    /// # Errors
    /// If the database fails.
    pub fn renew_admin_token(&self) -> Result<String> {
        let token = random_key();
        self.connection.execute("UPDATE study SET admin_token_hash = ?1", [hash_token(&token)])?;
        Ok(token)
    }

    /// The hash of the administrator's token, if there is one.
    ///
    /// # Errors
    /// If the database fails.
    pub fn read_admin_token_hash(&self) -> Result<Option<[u8; 32]>> {
        Ok(self.connection.query_row("SELECT admin_token_hash FROM study", [], |row| row.get(0))?)
    }
}
