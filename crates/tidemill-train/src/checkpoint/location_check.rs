//! Checks at the start of a run: whether checkpoints can be written and committed, and whether all
//! ranks use the same location.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;

use super::store::Checkpoints;
use super::writer::Writer;
use crate::Error;
use crate::parallel::world::World;

/// The attempt that started last.
pub(super) const START: &str = "start.json";

/// Put like a commit, to find out whether commits can be put.
pub(super) const PROBE: &str = "probe";

/// How late a shared folder may show on one node what was written on another.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(20);

impl Checkpoints {
    /// Checks that checkpoints can be written and committed, and records the attempt that starts.
    ///
    /// # Errors
    /// If the store cannot be written, or does not support put-if-absent, as a file system without
    /// hard links.
    pub fn check_writable(&self, writer: &Writer) -> Result<(), Error> {
        self.put_json(START, &serde_json::json!({ "attempt": writer.attempt }))?;
        // If it is present, another process that starts at the same time or was killed has put it:
        // put-if-absent works.
        self.location.put_if_absent(PROBE, Bytes::from_static(b"{}"))?;
        // Another process may have deleted it. A store that denies deletion can hold checkpoints
        // all the same.
        let _ = self.location.delete(PROBE);
        Ok(())
    }

    /// Checks that all ranks use the same location: that each sees the attempt that the first rank
    /// recorded. All ranks call it together, before any of them looks for checkpoints, because a
    /// shared folder may cache for long that a file was absent.
    ///
    /// # Errors
    /// [`Error::World`] on the first rank that does not see it; see [`World::propagate_error`].
    pub fn check_shared_location(&self, writer: &Writer, world: &World) -> Result<(), Error> {
        let seen = if world.is_first() { Ok(()) } else { self.wait_for_attempt(&writer.attempt) };
        world
            .propagate_error(seen.map_err(|problem| Error::World(format!("rank {} {problem}", world.rank()))))
    }

    /// Waits until this rank sees `attempt` as the one that started last.
    fn wait_for_attempt(&self, attempt: &str) -> Result<(), String> {
        let deadline = Instant::now() + VISIBILITY_TIMEOUT;
        loop {
            let start = self.location.get_if_present(START);
            let parse = |bytes: &Bytes| Some(serde_json::from_slice::<Value>(bytes).ok()?["attempt"].take());
            let seen = start.as_ref().ok().and_then(Option::as_ref).and_then(parse);
            if seen.is_some_and(|seen| seen == attempt) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let uri = self.location.uri_of(START);
                return Err(match start {
                    Err(error) => format!("cannot read what rank 0 has written: {error}"),
                    Ok(_) => format!(
                        "does not find {uri}, which rank 0 has just written: set checkpoint.uri to a location that all nodes share"
                    ),
                });
            }
            std::thread::sleep(VISIBILITY_TIMEOUT / 100);
        }
    }
}
