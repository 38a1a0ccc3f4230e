//! A thread that owns the database. Requests that come while the disk is busy share the next
//! transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::database::Database;
use crate::error::{Error, Result};

/// The most requests in one transaction.
const MAX_GROUP: usize = 256;

/// Reports to the caller whether the transaction was committed.
type Reply = Box<dyn FnOnce(std::result::Result<(), String>) + Send>;

/// A request: does its work in the open transaction.
type Job = Box<dyn FnOnce(&Database) -> Reply + Send>;

/// The thread.
#[derive(Debug)]
pub struct DatabaseThread {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl DatabaseThread {
    /// Starts the thread.
    pub fn start(database: Database) -> Self {
        let (jobs, received) = channel();
        let thread = std::thread::spawn(move || run(&database, &received));
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    /// Runs `work` on the database. When this returns a value, all that `work` wrote is on the disk.
    ///
    /// # Errors
    /// The error of `work`, or of the transaction; then nothing of it is stored.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |database| {
            let result = in_savepoint(database, work);
            Box::new(move |committed| {
                let result = committed.map_err(|problem| failed(&problem)).and(result);
                // The browser may have gone.
                let _ = reply.send(result);
            })
        });
        let ended = || failed("it has been closed");
        self.jobs.as_ref().ok_or_else(ended)?.send(job).map_err(|_| ended())?;
        answer.await.map_err(|_| failed("a request failed; see the log"))?
    }
}

impl Drop for DatabaseThread {
    /// Waits until all that was asked for is stored.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn failed(problem: &str) -> Error {
    Error::Server(std::io::Error::other(format!("the study's database: {problem}")))
}

fn run(database: &Database, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let group: Vec<Job> = std::iter::once(first).chain(jobs.try_iter().take(MAX_GROUP - 1)).collect();
        let mut replies = Vec::with_capacity(group.len());
        let result = database.execute("BEGIN IMMEDIATE").and_then(|()| {
            for job in group {
                // A request that panics loses its reply, and so reports an error.
                replies.extend(catch_unwind(AssertUnwindSafe(|| job(database))).ok());
            }
            database.execute("COMMIT")
        });
        let result = result.map_err(|error| {
            tracing::error!("judgements cannot be stored: {error}");
            // Fails if there is no transaction, which is as well.
            let _ = database.execute("ROLLBACK");
            error.to_string()
        });
        for reply in replies {
            reply(result.clone());
        }
    }
}

/// Runs one request's work so that its failure undoes nothing of the others.
fn in_savepoint<T>(database: &Database, work: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
    database.execute("SAVEPOINT request")?;
    let result = work(database);
    if result.is_err() {
        database.execute("ROLLBACK TO request")?;
    }
    database.execute("RELEASE request")?;
    result
}
