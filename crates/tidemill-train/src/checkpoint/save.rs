//! Writes and commits checkpoints.

use std::time::Duration;

use super::commit::{Commit, FORMAT, StateShard, commit_key, step_folder};
use super::state_copy::StateCopy;
use super::store::Checkpoints;
use super::writer::Writer;
use crate::Error;

/// The pause between two looks of the first rank for the shards of others.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

impl Checkpoints {
    /// Writes a rank's state shard. The first rank commits the checkpoint once all shards are
    /// there; it waits for the others as long as `should_wait` says so.
    ///
    /// # Errors
    /// If the store cannot be written, or a shard of another rank is not written in time;
    /// [`Error::Overtaken`].
    pub fn save(
        &self,
        state: &StateCopy,
        writer: &Writer,
        should_wait: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let step = state.step();
        if writer.rank == 0 {
            self.check_ownership(writer)?;
        }
        if writer.rank == 0 && self.list_steps()?.contains(&step) {
            if self.is_intact(step)? {
                return Ok(());
            }
            // This damaged checkpoint was skipped when the run started, and would be skipped again.
            self.location.delete(&commit_key(step))?;
        }
        let shard = self.write_shard(writer.object_key(step, writer.rank, "safetensors"), state)?;
        if writer.rank > 0 {
            return self.put_json(&writer.object_key(step, writer.rank, "json"), &shard);
        }
        let mut shards = vec![shard];
        for rank in &writer.others {
            shards.push(self.wait_for_shard(*rank, step, writer, should_wait)?);
        }
        let commit = Commit {
            format: FORMAT,
            progress: state.progress.clone(),
            has_ema: state.has_ema,
            parameters: state.parameters.clone(),
            shards,
        };
        let text = serde_json::to_vec(&commit).map_err(|e| self.error(&step_folder(step), e.to_string()))?;
        if !self.location.put_if_absent(&commit_key(step), text.into())? {
            self.check_own_commit(step, writer)?;
        }
        Ok(())
    }

    /// Writes a state shard directly from the memory of the state copy.
    fn write_shard(&self, file: String, state: &StateCopy) -> Result<StateShard, Error> {
        let mut upload = self.location.upload(&file);
        let (mut bytes, mut crc32c) = (0, 0);
        for chunk in state.encode().map_err(|problem| self.error(&file, problem))? {
            bytes += chunk.len();
            crc32c = crc32c::crc32c_append(crc32c, &chunk);
            upload.write(chunk)?;
        }
        upload.finish()?;
        Ok(StateShard { file, bytes, crc32c, ranges: state.ranges.clone() })
    }

    /// Checks that an existing commit is this attempt's own: a put whose response was lost.
    pub(super) fn check_own_commit(&self, step: u64, writer: &Writer) -> Result<(), Error> {
        let own = format!("{}/{}/", step_folder(step), writer.attempt);
        if self.read_commit(step)?.shards.iter().all(|shard| shard.file.starts_with(&own)) {
            return Ok(());
        }
        let message =
            "another process has written it meanwhile; a run must be trained only once at a time".into();
        Err(self.error(&step_folder(step), message))
    }

    /// Waits until another rank's shard is complete.
    fn wait_for_shard(
        &self,
        rank: usize,
        step: u64,
        writer: &Writer,
        should_wait: &dyn Fn() -> bool,
    ) -> Result<StateShard, Error> {
        let key = writer.object_key(step, rank, "json");
        loop {
            if let Some(bytes) = self.location.get_if_present(&key)? {
                return serde_json::from_slice(&bytes).map_err(|e| self.error(&key, e.to_string()));
            }
            if !should_wait() {
                return Err(self.error(&key, "that rank has not written its shard".into()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether all shards of a checkpoint are there and undamaged.
    ///
    /// # Errors
    /// If the store cannot be read, which does not tell whether the checkpoint is intact.
    fn is_intact(&self, step: u64) -> Result<bool, Error> {
        let commit = match self.read_commit(step) {
            Ok(commit) => commit,
            Err(error @ Error::Storage(_)) => return Err(error),
            Err(_) => return Ok(false),
        };
        for shard in &commit.shards {
            let bytes = self.location.get_if_present(&shard.file)?;
            if !bytes.is_some_and(|bytes| shard.has_contents(&bytes)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
