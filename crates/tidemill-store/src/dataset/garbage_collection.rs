//! Garbage collection. Removes objects that no reader can use any more: files of attempts that lost
//! or died, units that no kept snapshot names, and old snapshots. Young objects stay, because a
//! running process may still need them.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use serde::Serialize;

use crate::dataset::commit::{Commit, list_committed_units, read_commits};
use crate::dataset::manifest::{self, Manifest};
use crate::dataset::object_keys::{COMMITS, DATA, MANIFEST};
use crate::dataset::unit::{Digests, UnitId};
use crate::error::{Error, Result};
use tidemill_io::{Entry, Location};

/// What a garbage collection may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageCollector {
    /// Number of newest snapshots to keep, at least 1. A training run keeps reading the snapshot it
    /// started with.
    pub keep: usize,
    /// Objects younger than this are never removed.
    pub older_than: Duration,
    /// Only report what would be removed.
    pub dry_run: bool,
}

/// What was removed, or would be removed by a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Garbage {
    /// Number of objects.
    pub objects: u64,
    /// Total size of the objects in bytes.
    pub bytes: u64,
    /// Keys of the objects in the dataset.
    pub keys: Vec<String>,
}

impl GarbageCollector {
    /// Removes the garbage of the dataset at `uri`. Snapshots go first and files last, so that a
    /// crash in between leaves nothing that names a removed object.
    ///
    /// # Errors
    /// [`Error::NoManifest`] if there is no snapshot, because garbage cannot be distinguished from
    /// data then; a failure of the store.
    pub fn collect(&self, uri: &str) -> Result<Garbage> {
        let location = Location::open(uri)?;
        let numbers = Manifest::list_numbers(&location)?;
        let kept = &numbers[numbers.len().saturating_sub(self.keep.max(1))..];
        let snapshots = kept.iter().map(|number| Manifest::read(&location, *number));
        let snapshots = snapshots.collect::<Result<Vec<_>>>()?;
        let Some(newest) = snapshots.last() else {
            return Err(Error::NoManifest { uri: location.uri().into() });
        };
        let mut entries = location.entries("")?;
        let young = entries.iter().filter(|entry| entry.age() < self.older_than);
        let young: HashSet<UnitId> = young.filter_map(|entry| UnitId::from_commit_key(&entry.key)).collect();
        let in_use = InUse::new(&location, &snapshots, newest, &young)?;

        let mut garbage = Garbage::default();
        entries.retain(|entry| entry.age() >= self.older_than && !in_use.contains(&entry.key));
        let is_in = |entry: &Entry, folder: &str| entry.key.starts_with(&format!("{folder}/"));
        entries.sort_by_key(|entry| (!is_in(entry, MANIFEST), !is_in(entry, COMMITS)));
        for entry in entries {
            self.remove(entry, &mut garbage, |entry| Ok(location.delete(&entry.key)?))?;
        }
        let is_old = |entry: &Entry| entry.age() >= self.older_than && InUse::is_dataset_key(&entry.key);
        for entry in location.list_unfinished_files("").into_iter().filter(is_old) {
            self.remove(entry, &mut garbage, |entry| Ok(location.delete_unfinished_file(entry)?))?;
        }
        Ok(garbage)
    }

    fn remove(
        &self,
        entry: Entry,
        garbage: &mut Garbage,
        delete: impl FnOnce(&Entry) -> Result<()>,
    ) -> Result<()> {
        if !self.dry_run {
            delete(&entry)?;
        }
        garbage.objects += 1;
        garbage.bytes += entry.bytes;
        garbage.keys.push(entry.key);
        Ok(())
    }
}

/// The object keys that are in use.
struct InUse {
    keys: HashSet<String>,
}

impl InUse {
    /// Collects the keys that the kept snapshots name, and those of units without a snapshot that a
    /// running process may still need. These are the units under the settings of the newest
    /// snapshot, because a run that stopped before its snapshot continues from them, and the units
    /// under settings that a unit in `young` has too, no matter how long that work has been
    /// running.
    fn new(
        location: &Location,
        snapshots: &[Manifest],
        newest: &Manifest,
        young: &HashSet<UnitId>,
    ) -> Result<Self> {
        let in_snapshots: BTreeSet<&UnitId> =
            snapshots.iter().flat_map(|s| &s.commits).map(|commit| &commit.id).collect();
        let other_units = list_committed_units(location)?.into_iter().filter(|id| !in_snapshots.contains(id));
        let other_units: Vec<UnitId> = other_units.collect();
        let other_commits = read_commits(location, &other_units)?;
        let active = other_commits.iter().filter(|commit| young.contains(&commit.id));
        let settings = newest.commits.iter().chain(active).map(|commit| &commit.unit.digests);
        let settings: HashSet<&Digests> = settings.collect();
        let other_commits = other_commits.iter().filter(|commit| settings.contains(&commit.unit.digests));

        let mut keys = HashSet::from([crate::dataset::object_keys::DATASET.to_owned()]);
        for snapshot in snapshots {
            keys.insert(manifest::manifest_key(snapshot.number));
        }
        for commit in snapshots.iter().flat_map(|snapshot| &snapshot.commits).chain(other_commits) {
            keys.extend(object_keys(commit));
        }
        Ok(Self { keys })
    }

    /// Whether a key is in use. Keys of foreign files always are. So are the objects of empty
    /// captions, which are small: each is put before the first unit that needs it, and no unit
    /// names it before there is a snapshot.
    fn contains(&self, key: &str) -> bool {
        self.keys.contains(key) || !Self::is_dataset_key(key)
    }

    fn is_dataset_key(key: &str) -> bool {
        [MANIFEST, COMMITS, DATA].iter().any(|folder| key.starts_with(&format!("{folder}/")))
    }
}

fn object_keys(commit: &Commit) -> impl Iterator<Item = String> {
    commit.files.iter().map(|file| file.path.clone()).chain([commit.id.commit_key()])
}
