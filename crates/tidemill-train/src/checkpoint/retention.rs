//! Checkpoint retention: which checkpoints are kept, and the deletion of all others.

use std::collections::BTreeSet;

use super::commit::{parse_committed_step, parse_step};
use super::store::Checkpoints;
use super::writer::Writer;
use crate::Error;

impl Checkpoints {
    /// On the first rank, deletes checkpoints that need not be kept, and objects of checkpoints
    /// that were never committed.
    ///
    /// # Errors
    /// If the store denies deletion, or the records for `checkpoint.keep_best` cannot be read. No
    /// checkpoint that is to be kept is affected.
    pub fn delete_expired(&self, writer: &Writer) -> Result<(), Error> {
        if writer.rank > 0 {
            return Ok(());
        }
        let keys = self.location.list("")?;
        let steps: BTreeSet<u64> = keys.iter().filter_map(|key| parse_committed_step(key)).collect();
        let mut kept = select_kept(&steps, self.keep, self.keep_every);
        if let Some(best) = &self.best {
            // While the records cannot be read, nothing is deleted: the best may be among them.
            kept.extend(best.select(&steps)?);
        }
        let newest = kept.last().copied().unwrap_or(0);
        let is_expired =
            |key: &&String| parse_step(key).is_some_and(|step| step < newest && !kept.contains(&step));
        // Commits first: once its commit is gone, a checkpoint does not exist.
        let (commits, others): (Vec<&String>, Vec<&String>) =
            keys.iter().filter(is_expired).partition(|key| parse_committed_step(key).is_some());
        for key in commits.into_iter().chain(others) {
            self.location.delete(key)?;
        }
        // Files that processes were writing when they were killed. No process still writes a step
        // older than the newest.
        for file in self.location.list_unfinished_files("") {
            if parse_step(&file.key).is_some_and(|step| step < newest) {
                self.location.delete_unfinished_file(&file)?;
            }
        }
        Ok(())
    }
}

/// Selects the checkpoints to keep: the `keep` newest, and the first of each interval of
/// `keep_every` steps except the first interval. The first checkpoint of an interval may be later
/// than its first step, if none was written in time.
fn select_kept(steps: &BTreeSet<u64>, keep: usize, keep_every: Option<u64>) -> BTreeSet<u64> {
    let newest = steps.iter().rev().take(keep);
    let is_first_of_interval = |step: u64, every: u64| {
        let start = step - step % every;
        start > 0 && steps.range(start..step).next().is_none()
    };
    let firsts =
        steps.iter().filter(|step| keep_every.is_some_and(|every| is_first_of_interval(**step, every)));
    newest.chain(firsts).copied().collect()
}
