//! Writing a checkpoint.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Checkpoints, Commit, FORMAT, Shard, commit_key, committed_step, folder, step_of};
use crate::Error;
use crate::checkpoint::state_copy::Snapshot;
use crate::config::Writers;
use crate::parallel::world::World;

/// Pauses in which the first rank looks for the others' shards.
const POLL: Duration = Duration::from_millis(100);

/// Who writes: which rank, of how many, who the others are, and a name that they share and nobody else has.
#[derive(Clone, Debug)]
pub struct Writer {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) others: Vec<usize>,
    pub(super) attempt: String,
}

impl Writer {
    /// One of the ranks of `world`; all of them call it together.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn new(world: &World, writers: Writers) -> Result<Self, Error> {
        let attempt = world.texts(&unique())?.swap_remove(0);
        let others = world.writers(writers).split_off(1);
        Ok(Self { rank: world.rank(), ranks: world.size(), others, attempt })
    }

    fn name(&self, step: u64, rank: usize, extension: &str) -> String {
        format!("{}/{}/rank-{rank}-of-{}.{extension}", folder(step), self.attempt, self.ranks)
    }
}

impl Checkpoints {
    /// Saves one rank's share of a state. The first rank commits it when all have, as long as it may `wait` for them.
    ///
    /// # Errors
    /// If the store cannot be written, or the others' shards do not come; [`Error::Overtaken`].
    pub fn save(&self, snapshot: &Snapshot, writer: &Writer, wait: &dyn Fn() -> bool) -> Result<(), Error> {
        let step = snapshot.step();
        if writer.rank == 0 {
            self.check_owner(writer)?;
        }
        if writer.rank == 0 && self.steps()?.contains(&step) {
            if self.is_intact(step)? {
                return Ok(());
            }
            // It was passed over when the run began, and would be again.
            self.location.delete(&commit_key(step))?;
        }
        let shard = self.put_shard(writer.name(step, writer.rank, "safetensors"), snapshot)?;
        if writer.rank > 0 {
            return self.put_json(&writer.name(step, writer.rank, "json"), &shard);
        }
        let mut shards = vec![shard];
        for rank in &writer.others {
            shards.push(self.shard_of(*rank, step, writer, wait)?);
        }
        let commit = Commit {
            format: FORMAT,
            progress: snapshot.progress.clone(),
            ema: snapshot.ema,
            parameters: snapshot.parameters.clone(),
            shards,
        };
        let text = serde_json::to_vec(&commit).map_err(|e| self.error(&folder(step), e.to_string()))?;
        if !self.location.put_if_absent(&commit_key(step), text.into())? {
            self.check_own(step, writer)?;
        }
        Ok(())
    }

    /// Writes a shard from where its values lie: they are not copied again.
    fn put_shard(&self, file: String, snapshot: &Snapshot) -> Result<Shard, Error> {
        let mut upload = self.location.upload(&file);
        let (mut bytes, mut crc32c) = (0, 0);
        for piece in snapshot.file().map_err(|problem| self.error(&file, problem))? {
            bytes += piece.len();
            crc32c = crc32c::crc32c_append(crc32c, &piece);
            upload.write(piece)?;
        }
        upload.finish()?;
        Ok(Shard { file, bytes, crc32c, ranges: snapshot.ranges.clone() })
    }

    /// Makes sure that a commit that was there is this writer's: of one whose answer was lost.
    pub(super) fn check_own(&self, step: u64, writer: &Writer) -> Result<(), Error> {
        let own = format!("{}/{}/", folder(step), writer.attempt);
        if self.commit(step)?.shards.iter().all(|shard| shard.file.starts_with(&own)) {
            return Ok(());
        }
        let message =
            "another process has written it meanwhile; a run must be trained only once at a time".into();
        Err(self.error(&folder(step), message))
    }

    /// What another rank says of its shard, once it does.
    fn shard_of(
        &self,
        rank: usize,
        step: u64,
        writer: &Writer,
        wait: &dyn Fn() -> bool,
    ) -> Result<Shard, Error> {
        let key = writer.name(step, rank, "json");
        loop {
            if let Some(bytes) = self.location.get_if_present(&key)? {
                return serde_json::from_slice(&bytes).map_err(|e| self.error(&key, e.to_string()));
            }
            if !wait() {
                return Err(self.error(&key, "that rank has not written its shard".into()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether all shards of a checkpoint are there and as they were written.
    ///
    /// # Errors
    /// If the store cannot be read, which says nothing of the checkpoint.
    fn is_intact(&self, step: u64) -> Result<bool, Error> {
        let commit = match self.commit(step) {
            Ok(commit) => commit,
            Err(error @ Error::Storage(_)) => return Err(error),
            Err(_) => return Ok(false),
        };
        for shard in &commit.shards {
            if !self.location.get_if_present(&shard.file)?.is_some_and(|bytes| shard.is(&bytes)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has the first rank remove checkpoints that are not [`kept`], and what is left of those that were never committed.
    ///
    /// # Errors
    /// If the store does not let it, which takes nothing from the checkpoints that there are.
    pub fn retain(&self, writer: &Writer) -> Result<(), Error> {
        if writer.rank > 0 {
            return Ok(());
        }
        let keys = self.location.list("")?;
        let steps: BTreeSet<u64> = keys.iter().filter_map(|key| committed_step(key)).collect();
        let kept = kept(&steps, self.keep, self.keep_every);
        let newest = kept.last().copied().unwrap_or(0);
        let old = |key: &&String| step_of(key).is_some_and(|step| step < newest && !kept.contains(&step));
        // The commits first: from then on the checkpoint does not exist.
        let (commits, others): (Vec<&String>, Vec<&String>) =
            keys.iter().filter(old).partition(|key| committed_step(key).is_some());
        for key in commits.into_iter().chain(others) {
            self.location.delete(key)?;
        }
        // What processes were writing when they were killed. Nobody writes a step again that is older than the newest.
        for file in self.location.unfinished() {
            if step_of(&file.key).is_some_and(|step| step < newest) {
                self.location.delete_unfinished(&file)?;
            }
        }
        Ok(())
    }
}

/// Which checkpoints stay: so many of the newest, and the first in each stretch of `keep_every` steps but the first, which may come
/// late where a checkpoint was not written in time.
fn kept(steps: &BTreeSet<u64>, keep: usize, keep_every: Option<u64>) -> BTreeSet<u64> {
    let newest = steps.iter().rev().take(keep);
    let is_first = |step: u64, every: u64| {
        let begin = step - step % every;
        begin > 0 && steps.range(begin..step).next().is_none()
    };
    let firsts = steps.iter().filter(|step| keep_every.is_some_and(|every| is_first(**step, every)));
    newest.chain(firsts).copied().collect()
}

/// A name that no other attempt has.
fn unique() -> String {
    let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos());
    format!("{:x}-{:x}", std::process::id(), nanos)
}
