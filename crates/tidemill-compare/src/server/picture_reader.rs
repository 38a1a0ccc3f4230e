//! Reads pictures with connections of its own, so that they do not wait for judgements.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use crate::database::Database;
use crate::error::{Error, Result};

/// Pictures that are read at once, and so connections.
const MAX_READS: usize = 16;

/// Idle connections, at most as many as there were requests at once.
#[derive(Debug, Clone)]
pub struct PictureReader {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Database>>>,
    permits: Arc<Semaphore>,
}

impl PictureReader {
    /// Reads pictures of the study in a file.
    pub fn new(path: PathBuf) -> Self {
        Self { path: Arc::new(path), idle: Arc::default(), permits: Arc::new(Semaphore::new(MAX_READS)) }
    }

    /// The picture with a key.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn read(&self, key: String) -> Result<Option<Vec<u8>>> {
        let reader = self.clone();
        let permit = self.permits.clone().acquire_owned().await;
        let read = tokio::task::spawn_blocking(move || {
            let database = match reader.take() {
                Some(database) => database,
                None => Database::open(&reader.path)?,
            };
            let picture = database.read_picture(&key);
            if let Ok(mut idle) = reader.idle.lock() {
                idle.push(database);
            }
            drop(permit);
            picture
        });
        read.await.map_err(|e| Error::Server(std::io::Error::other(e)))?
    }

    fn take(&self) -> Option<Database> {
        self.idle.lock().ok()?.pop()
    }
}
