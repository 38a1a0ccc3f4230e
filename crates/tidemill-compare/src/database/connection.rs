//! A connection to a study's database.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags};

use crate::error::{Error, Result};
use crate::study::StudyConfig;

/// How long a statement waits for another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a study's database.
#[derive(Debug)]
pub struct Database {
    pub(super) connection: Connection,
    /// The study.
    pub config: StudyConfig,
}

impl Database {
    /// Opens the study's file, or creates it. `None` if it has another configuration.
    ///
    /// # Errors
    /// If it cannot be written, or is no study.
    pub fn create(path: &Path, config: &StudyConfig) -> Result<Option<Self>> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        let text = serde_json::to_string(config)
            .map_err(|e| Error::Config { key: "study".into(), problem: e.to_string() })?;
        let is_new: bool =
            connection.query_row("SELECT count(*) = 0 FROM sqlite_master", [], |row| row.get(0))?;
        if is_new {
            connection.execute_batch(concat!("BEGIN;", include_str!("schema.sql"), "COMMIT;"))?;
        }
        connection.execute("INSERT OR IGNORE INTO study (id, config) VALUES (1, ?1)", [&text])?;
        let known: String = connection.query_row("SELECT config FROM study", [], |row| row.get(0))?;
        Ok((known == text).then(|| Self { connection, config: config.clone() }))
    }

    /// Opens a complete study.
    ///
    /// # Errors
    /// If there is none, or its pictures are not complete.
    pub fn open(path: &Path) -> Result<Self> {
        let missing = |problem: String| Error::NoStudy { path: path.display().to_string(), problem };
        if !path.is_file() {
            return Err(missing("there is no such file".into()));
        }
        let connection =
            connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|e| missing(e.to_string()))?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?));
        let (text, is_complete) = connection
            .query_row("SELECT config, complete FROM study", [], row)
            .map_err(|_| missing("it is not a study".into()))?;
        if !is_complete {
            return Err(missing("its pictures are not complete".into()));
        }
        let config = serde_json::from_str(&text).map_err(|e| missing(e.to_string()))?;
        Ok(Self { connection, config })
    }

    /// Runs a statement without parameters or rows, as `BEGIN`.
    ///
    /// # Errors
    /// If the database fails.
    pub fn execute(&self, statement: &str) -> Result<()> {
        Ok(self.connection.prepare_cached(statement)?.execute([]).map(|_| ())?)
    }

    /// Runs `work` in one transaction, which is on the disk when this returns.
    ///
    /// # Errors
    /// The error of `work`, or of the database; then nothing of it is stored.
    pub fn transaction<T>(&self, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.execute("BEGIN IMMEDIATE")?;
        let result = work(self);
        self.execute(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        result
    }
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // What is committed survives a loss of power.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// The current time in Unix milliseconds.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64)
}
