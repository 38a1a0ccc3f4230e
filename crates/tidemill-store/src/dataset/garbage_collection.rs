//! Removes what nobody can read any more: files of attempts that lost or died, units that no kept snapshot names,
//! old snapshots. What is young stays, for somebody may be at work on it.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use serde::Serialize;

use crate::dataset::commit::{Commit, committed, read_commits};
use crate::dataset::layout::{COMMITS, DATA, MANIFEST};
use crate::dataset::manifest::{self, Manifest};
use crate::dataset::unit::{Digests, UnitId};
use crate::error::{Error, Result};
use tidemill_io::{Entry, Location};

/// What may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gc {
    /// Newest snapshots to keep, at least 1. A training run goes on with the snapshot that it began with.
    pub keep: usize,
    /// Objects younger than this stay, whatever they are.
    pub older_than: Duration,
    /// Only say what would go.
    pub dry_run: bool,
}

/// What went, or would go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Garbage {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their keys in the dataset.
    pub keys: Vec<String>,
}

impl Gc {
    /// Removes the garbage of the dataset at `uri`: snapshots first and files last, so that a death in between
    /// leaves nothing that names what is gone.
    ///
    /// # Errors
    /// [`Error::NoManifest`] if there is no snapshot, for then nothing can be told apart; a failure of the store.
    pub fn run(&self, uri: &str) -> Result<Garbage> {
        let location = Location::open(uri)?;
        let numbers = Manifest::numbers(&location)?;
        let kept = &numbers[numbers.len().saturating_sub(self.keep.max(1))..];
        let snapshots = kept.iter().map(|number| Manifest::read(&location, *number));
        let snapshots = snapshots.collect::<Result<Vec<_>>>()?;
        let Some(newest) = snapshots.last() else {
            return Err(Error::NoManifest { uri: location.uri().into() });
        };
        let mut entries = location.entries("")?;
        let young = entries.iter().filter(|entry| entry.age() < self.older_than);
        let young: HashSet<UnitId> = young.filter_map(|entry| UnitId::of_commit_key(&entry.key)).collect();
        let in_use = InUse::new(&location, &snapshots, newest, &young)?;

        let mut garbage = Garbage::default();
        entries.retain(|entry| entry.age() >= self.older_than && !in_use.names(&entry.key));
        let is_in = |entry: &Entry, folder: &str| entry.key.starts_with(&format!("{folder}/"));
        entries.sort_by_key(|entry| (!is_in(entry, MANIFEST), !is_in(entry, COMMITS)));
        for entry in entries {
            self.remove(entry, &mut garbage, |entry| Ok(location.delete(&entry.key)?))?;
        }
        let old = |entry: &Entry| entry.age() >= self.older_than && InUse::are_ours(&entry.key);
        for entry in location.unfinished().into_iter().filter(old) {
            self.remove(entry, &mut garbage, |entry| Ok(location.delete_unfinished(entry)?))?;
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

/// The keys that are in use.
struct InUse {
    keys: HashSet<String>,
}

impl InUse {
    /// What the kept snapshots name, and the units without a snapshot that somebody may be at work on: those under
    /// the newest one's settings, from which a run that stopped before its snapshot goes on, and those under
    /// settings of which a unit is `young`, however long that work has been going on.
    fn new(
        location: &Location,
        snapshots: &[Manifest],
        newest: &Manifest,
        young: &HashSet<UnitId>,
    ) -> Result<Self> {
        let named: BTreeSet<&UnitId> =
            snapshots.iter().flat_map(|s| &s.commits).map(|commit| &commit.id).collect();
        let others = committed(location)?.into_iter().filter(|id| !named.contains(id));
        let others: Vec<UnitId> = others.collect();
        let later = read_commits(location, &others)?;
        let at_work = later.iter().filter(|commit| young.contains(&commit.id));
        let settings = newest.commits.iter().chain(at_work).map(|commit| &commit.unit.digests);
        let settings: HashSet<&Digests> = settings.collect();
        let later = later.iter().filter(|commit| settings.contains(&commit.unit.digests));

        let mut keys = HashSet::from([crate::dataset::layout::DATASET.to_owned()]);
        for snapshot in snapshots {
            keys.insert(manifest::key_of(snapshot.number));
        }
        for commit in snapshots.iter().flat_map(|snapshot| &snapshot.commits).chain(later) {
            keys.extend(keys_of(commit));
        }
        Ok(Self { keys })
    }

    /// Whether a key is in use; keys that are none of ours always are. So are empty captions, which are small: each is
    /// put before the first unit that it belongs to, and no unit names it before there is a snapshot.
    fn names(&self, key: &str) -> bool {
        self.keys.contains(key) || !Self::are_ours(key)
    }

    fn are_ours(key: &str) -> bool {
        [MANIFEST, COMMITS, DATA].iter().any(|folder| key.starts_with(&format!("{folder}/")))
    }
}

fn keys_of(commit: &Commit) -> impl Iterator<Item = String> {
    commit.files.iter().map(|file| file.path.clone()).chain([commit.id.commit_key()])
}
