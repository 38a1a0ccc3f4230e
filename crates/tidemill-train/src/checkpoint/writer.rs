//! The identity of a rank as a writer of checkpoints.

use super::commit::step_folder;
use crate::Error;
use crate::config::CheckpointWriters;
use crate::parallel::world::World;

/// A rank that writes checkpoints, in one attempt at a run.
#[derive(Clone, Debug)]
pub struct Writer {
    pub(super) rank: usize,
    /// The number of ranks.
    pub(super) ranks: usize,
    /// The other ranks that write.
    pub(super) others: Vec<usize>,
    /// A name that all ranks of this attempt share, and no other attempt has.
    pub(super) attempt: String,
}

impl Writer {
    /// This rank of `world`. All ranks call it together.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn new(world: &World, writers: CheckpointWriters) -> Result<Self, Error> {
        let attempt = world.all_gather_text(&unique_name())?.swap_remove(0);
        let others = world.checkpoint_writers(writers).split_off(1);
        Ok(Self { rank: world.rank(), ranks: world.size(), others, attempt })
    }

    /// The key of a rank's object in the checkpoint of a step.
    pub(super) fn object_key(&self, step: u64, rank: usize, extension: &str) -> String {
        format!("{}/{}/rank-{rank}-of-{}.{extension}", step_folder(step), self.attempt, self.ranks)
    }
}

fn unique_name() -> String {
    let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos());
    format!("{:x}-{:x}", std::process::id(), nanos)
}
