//! Ownership of a run: only one process may write its checkpoints. A process cannot know whether
//! one that started before it still lives, which may be on a node that is cut off from the network.
//! So the process that started last owns the run, and an older one ends at its next checkpoint.

use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::store::Checkpoints;
use super::writer::Writer;
use crate::Error;

const OWNER: &str = "owner.json";

/// The identity of the run, for people.
const RUN: &str = "run.json";

/// The process that owns a run, which is its first rank; in `owner.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    attempt: String,
    /// The process id, for messages.
    process: u32,
    /// The name of the machine, for messages.
    node: String,
    /// When it started, in seconds since 1970.
    #[serde(rename = "began")]
    started: u64,
}

impl Owner {
    /// This process, with the name of its attempt.
    fn new(attempt: String) -> Self {
        Self { attempt, process: std::process::id(), node: tidemill_io::hostname(), started: unix_seconds() }
    }
}

fn unix_seconds() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}

impl Checkpoints {
    /// Makes this process the owner of the run, and writes the run's identity. Call it only once it
    /// is certain that this process can train, because the previous owner may still train and will
    /// end.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn acquire_ownership(&self, identity: &Value, writer: &Writer) -> Result<(), Error> {
        self.put_json(RUN, identity)?;
        self.put_json(OWNER, &Owner::new(writer.attempt.clone()))
    }

    /// Checks that no other process has become the owner since this attempt started.
    ///
    /// # Errors
    /// [`Error::Overtaken`], or if the store cannot be read.
    pub(super) fn check_ownership(&self, writer: &Writer) -> Result<(), Error> {
        let Some(bytes) = self.location.get_if_present(OWNER)? else { return Ok(()) };
        match serde_json::from_slice::<Owner>(&bytes) {
            Ok(owner) if owner.attempt != writer.attempt => Err(Error::Overtaken {
                location: self.path.clone(),
                process: owner.process,
                node: owner.node,
                seconds: unix_seconds().saturating_sub(owner.started),
            }),
            // An unreadable file does not prove that there is another owner.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
