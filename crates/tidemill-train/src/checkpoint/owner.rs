//! Who trains a run. One process must not write between another's checkpoints, and cannot know whether a process that began before
//! it still lives: it may be on a node that the network has lost. So the one that began last has the run, and an older one ends when
//! it next saves.

use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Checkpoints, RUN, Writer};
use crate::Error;

const OWNER: &str = "owner.json";

/// The process that trains a run: its first rank. In `owner.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    attempt: String,
    /// For people.
    process: u32,
    node: String,
    /// Seconds since 1970.
    began: u64,
}

impl Owner {
    fn new(attempt: String) -> Self {
        Self { attempt, process: std::process::id(), node: tidemill_io::node(), began: now() }
    }
}

fn now() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}

impl Checkpoints {
    /// Takes a run over from whoever has trained it, and leaves word of what run the checkpoints are of. Not before it is known
    /// that this process can train it: the other may live.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn take_over(&self, identity: &Value, writer: &Writer) -> Result<(), Error> {
        self.put_json(RUN, identity)?;
        self.put_json(OWNER, &Owner::new(writer.attempt.clone()))
    }

    /// Makes sure that nobody has taken the run over since this attempt began.
    ///
    /// # Errors
    /// [`Error::Overtaken`], or if the store cannot be read.
    pub(super) fn check_owner(&self, writer: &Writer) -> Result<(), Error> {
        let Some(word) = self.location.get_if_present(OWNER)? else { return Ok(()) };
        match serde_json::from_slice::<Owner>(&word) {
            Ok(owner) if owner.attempt != writer.attempt => Err(Error::Overtaken {
                place: self.path.clone(),
                process: owner.process,
                node: owner.node,
                seconds: now().saturating_sub(owner.began),
            }),
            // What cannot be read says nothing of another process.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
