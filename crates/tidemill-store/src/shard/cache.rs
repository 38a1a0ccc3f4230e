//! Row groups of datasets that lie elsewhere, kept in a folder of this machine. A file is named after its content, so it is
//! never stale; it appears under its name when it is complete, so a process may die at any time; and any number of
//! processes may share the folder. The files that were not used for longest go first.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tidemill_io::Checksum;
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::shard::buffer::Pool;
use crate::shard::footer::BlockEntry;
use crate::shard::row_group::Place;

/// How the names of files in the making begin.
const UNFINISHED: &str = "unfinished-";

/// Files in the making that are older were left by a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Files to lock, so that of several processes that want a row group one fetches it. More row groups share them.
const LOCKS: u64 = 64;

/// The folder is looked through when this share of what it may hold has come in: 1 / 16.
const LOOK: u64 = 16;

/// A row group is fetched if this share of its rows is wanted, 1 / 4, for others will be later: where blocks and row groups
/// do not begin at the same rows, half a row group is wanted at a time.
const WORTH: usize = 4;

/// Bytes hashed at a time.
const CHUNK: usize = 1 << 20;

/// A folder of row groups.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Bytes that it may hold, but for what came in since it was last looked through.
    limit: u64,
    /// What that is.
    new: AtomicU64,
    /// Whether it was said that something cannot be kept.
    warned: AtomicBool,
}

/// A row group, as a cache has it.
pub(crate) enum Cached {
    /// In a file, which may be gone at any time later.
    File(PathBuf),
    /// Fetched, but it cannot be kept.
    Fetched(Bytes),
}

impl Cache {
    /// Opens a folder, which is made if it is not there, and removes what it has too much.
    ///
    /// # Errors
    /// [`Error::Cache`] if the folder cannot be made or listed.
    pub fn open(folder: impl Into<PathBuf>, limit: u64) -> Result<Arc<Self>> {
        let (new, warned) = (AtomicU64::new(0), AtomicBool::new(false));
        let cache = Self { folder: folder.into(), limit, new, warned };
        let failed = |source| Error::Cache { path: cache.folder.display().to_string(), source };
        fs::create_dir_all(&cache.folder).map_err(failed)?;
        cache.evict(|_| limit).map_err(failed)?;
        Ok(Arc::new(cache))
    }

    /// A row group of which so many rows are wanted. If its file is not there or not whole, it is fetched, unless hardly
    /// any are; then `None`.
    ///
    /// # Errors
    /// If the row group cannot be fetched, or is not what was committed.
    pub(crate) fn get(&self, place: Place, rows: usize, pool: &Arc<Pool>) -> Result<Option<Cached>> {
        let path = self.folder.join(name(place.entry));
        if is_used(&path, place.entry) {
            return Ok(Some(Cached::File(path)));
        }
        if rows * WORTH < place.entry.rows as usize {
            return Ok(None);
        }
        let lock = self.lock(place.entry);
        // Whoever had the lock may have fetched it.
        if is_used(&path, place.entry) {
            return Ok(Some(Cached::File(path)));
        }
        let bytes = place.fetch(pool)?;
        let kept = self.keep(&path, &bytes);
        drop(lock);
        if let Err(error) = kept {
            if !self.warned.swap(true, Ordering::Relaxed) {
                let folder = self.folder.display();
                tracing::warn!(
                    "the cache {folder} cannot be added to: {error}; what it lacks is fetched each time"
                );
            }
            return Ok(Some(Cached::Fetched(bytes)));
        }
        let new = self.new.fetch_add(place.entry.bytes, Ordering::Relaxed) + place.entry.bytes;
        if new > self.limit / LOOK
            && let Err(error) = self.evict(|_| self.limit)
        {
            tracing::warn!("the cache {} cannot be looked through: {error}", self.folder.display());
        }
        Ok(Some(Cached::File(path)))
    }

    /// Waits while another process or thread fetches it. The lock ends with its file, or with the process.
    fn lock(&self, entry: &BlockEntry) -> Option<File> {
        let number = twox_hash::XxHash3_64::oneshot(name(entry).as_bytes()) % LOCKS;
        let file = File::options().create(true).append(true).open(self.folder.join(format!("lock-{number}")));
        // Without locks row groups may be fetched twice, and that is all.
        file.ok().filter(|file| file.lock().is_ok())
    }

    /// Writes a file; on a full disk in place of those that were not used for longest.
    fn keep(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let written = self.write(path, bytes);
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        if !written.as_ref().is_err_and(|error| full.contains(&error.kind())) {
            return written;
        }
        // More than is needed now, so that not each file has the folder looked through.
        self.evict(|held| held.saturating_sub((held / LOOK).max(bytes.len() as u64)))?;
        self.write(path, bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let unique = RandomState::new().hash_one((SystemTime::now(), std::process::id()));
        let unfinished = self.folder.join(format!("{UNFINISHED}{unique:016x}"));
        let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            // It may not even be there.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// Removes the files that were not used for longest until there are as many bytes as may be, given those that there
    /// are, and the files that were never finished.
    fn evict(&self, most: impl Fn(u64) -> u64) -> std::io::Result<()> {
        self.new.store(0, Ordering::Relaxed);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Other processes remove files, too.
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            let used = metadata.modified()?;
            if name.starts_with(UNFINISHED) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(entry.path());
            } else if is_name(&name) {
                files.push((used, metadata.len(), entry.path()));
            }
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        let most = most(bytes);
        for (_, size, path) in files {
            if bytes <= most {
                break;
            }
            let _ = fs::remove_file(path);
            bytes -= size;
        }
        Ok(())
    }
}

fn name(entry: &BlockEntry) -> String {
    format!("{}-{}", entry.xxh3, entry.bytes)
}

/// Whether a file is one of ours, whoever else may have put files there.
fn is_name(name: &str) -> bool {
    let digits = |text: &str, of: fn(&char) -> bool| !text.is_empty() && text.chars().all(|c| of(&c));
    name.split_once('-').is_some_and(|(checksum, bytes)| {
        checksum.len() == 16
            && digits(checksum, char::is_ascii_hexdigit)
            && digits(bytes, char::is_ascii_digit)
    })
}

/// Whether a file is there and whole, and so is used again.
fn is_used(path: &Path, entry: &BlockEntry) -> bool {
    let whole = is_whole(path, entry);
    if whole {
        // If it has gone meanwhile, its rows will be read from where it came from.
        let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }
    whole
}

/// Whether a file is there and has what its name says.
fn is_whole(path: &Path, entry: &BlockEntry) -> bool {
    let hash = || -> std::io::Result<Checksum> {
        let mut file = File::open(path)?;
        let (mut hasher, mut chunk) = (XxHash3_64::new(), vec![0; CHUNK]);
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(Checksum::from(&hasher)),
                n => hasher.write(&chunk[..n]),
            }
        }
    };
    fs::metadata(path).is_ok_and(|metadata| metadata.len() == entry.bytes)
        && hash().is_ok_and(|checksum| checksum == entry.xxh3)
}
