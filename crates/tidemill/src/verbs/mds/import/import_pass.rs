//! Imports shards in several threads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use tidemill_data::source::sample_id;
use tidemill_store::DatasetWriter;
use tidemill_store::mds::{Folder, Import};

use super::shard_units::ShardUnit;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Counts of the work of this command.
#[derive(Debug, Default)]
pub struct ImportCounts {
    pub shards: AtomicU64,
    /// Shards that had a hash, which was compared.
    pub hashed: AtomicU64,
    /// Rows with the embedding of the empty caption.
    pub dropped_captions: AtomicU64,
}

/// One pass over the units that are missing.
pub struct ImportPass<'a> {
    pub mds: &'a Folder,
    pub import: &'a Import,
    pub writer: &'a DatasetWriter,
    pub progress: &'a Progress,
    pub counts: &'a ImportCounts,
}

impl ImportPass<'_> {
    /// Imports the units, `workers` at a time.
    ///
    /// # Errors
    /// If a shard cannot be imported, or a signal stops the work.
    pub fn run(&self, units: &[&ShardUnit], workers: usize) -> Result<()> {
        let (next_unit, stop) = (AtomicUsize::new(0), StopSignal::watch());
        let work = || -> Result<()> {
            while !stop.is_raised()
                && let Some(unit) = units.get(next_unit.fetch_add(1, Ordering::Relaxed))
            {
                // After a failure, the other threads finish their units and stop.
                self.import_unit(unit).inspect_err(|_| next_unit.store(units.len(), Ordering::Relaxed))?;
            }
            Ok(())
        };
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..workers.min(units.len())).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|t| t.join().unwrap_or(Err(Error::Thread("import")))).collect()
        });
        results.into_iter().collect::<Result<()>>()?;
        let (done, total) = (self.counts.shards.load(Ordering::Relaxed), units.len() as u64);
        if done < total { Err(Error::Interrupted { done, total, unit: "shards" }) } else { Ok(()) }
    }

    fn import_unit(&self, ShardUnit { key, shard }: &ShardUnit) -> Result<()> {
        let (samples, has_hash) = self.mds.read(shard)?;
        let mut writer = self.writer.begin_unit(key);
        let ids = |row| sample_id(&key.identity, row);
        let dropped_captions = self.import.write(&samples, &key.file, ids, &mut writer)?;
        // If another import has committed the unit first, its attempt is used. The unit is in the
        // dataset either way.
        writer.commit()?;
        self.counts.shards.fetch_add(1, Ordering::Relaxed);
        self.counts.hashed.fetch_add(has_hash.into(), Ordering::Relaxed);
        self.counts.dropped_captions.fetch_add(dropped_captions, Ordering::Relaxed);
        self.progress.add(key.span.end);
        Ok(())
    }
}
