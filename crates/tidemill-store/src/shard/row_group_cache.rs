//! The row group cache: row groups of remote datasets in a local folder. A file is named after its
//! content, so it is never stale. It gets its name when it is complete, so a process may die at any
//! time. Any number of processes may share the folder. The least recently used files are evicted
//! first.

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
use crate::shard::buffer_pool::BufferPool;
use crate::shard::footer::BlockEntry;
use crate::shard::row_group::RowGroupReader;

/// Prefix of the names of unfinished files.
const UNFINISHED: &str = "unfinished-";

/// Older unfinished files were left by a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Number of lock files, so that only one of several processes fetches a row group. Row groups
/// share the locks.
const LOCKS: u64 = 64;

/// The folder is scanned for eviction after this share of its limit was added: 1 / 16.
const SCAN_SHARE: u64 = 16;

/// A row group is fetched if at least 1 / 4 of its rows are wanted, because the other rows will be
/// wanted later. Where blocks and row groups do not begin at the same rows, half a row group is
/// wanted at a time.
const FETCH_SHARE: usize = 4;

/// Bytes hashed at a time.
const CHUNK: usize = 1 << 20;

/// A local folder of row groups.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Bytes that the folder may hold. It may exceed this by what was added since the last scan.
    limit: u64,
    /// Bytes added since the last scan.
    added: AtomicU64,
    /// The warning that files cannot be added was already logged.
    warned: AtomicBool,
}

/// A row group that the cache returned.
pub(crate) enum CachedRowGroup {
    /// The row group is in this file, which another process may remove at any time.
    File(PathBuf),
    /// The row group was fetched, but the folder cannot hold it.
    Fetched(Bytes),
}

impl Cache {
    /// Opens a folder, creates it if needed, and evicts files above the limit.
    ///
    /// # Errors
    /// [`Error::Cache`] if the folder cannot be created or listed.
    pub fn open(folder: impl Into<PathBuf>, limit: u64) -> Result<Arc<Self>> {
        let (added, warned) = (AtomicU64::new(0), AtomicBool::new(false));
        let cache = Self { folder: folder.into(), limit, added, warned };
        let failed = |source| Error::Cache { path: cache.folder.display().to_string(), source };
        fs::create_dir_all(&cache.folder).map_err(failed)?;
        cache.evict(|_| limit).map_err(failed)?;
        Ok(Arc::new(cache))
    }

    /// Gets a row group, from which `rows` rows are wanted. Fetches it if its file is missing or
    /// damaged, unless too few rows are wanted; then returns `None`.
    ///
    /// # Errors
    /// If the row group cannot be fetched or differs from what was committed.
    pub(crate) fn get(
        &self,
        row_group: RowGroupReader,
        rows: usize,
        pool: &Arc<BufferPool>,
    ) -> Result<Option<CachedRowGroup>> {
        let path = self.folder.join(file_name(row_group.entry));
        if mark_if_intact(&path, row_group.entry) {
            return Ok(Some(CachedRowGroup::File(path)));
        }
        if rows * FETCH_SHARE < row_group.entry.rows as usize {
            return Ok(None);
        }
        let lock = self.lock(row_group.entry);
        // The previous holder of the lock may have fetched it.
        if mark_if_intact(&path, row_group.entry) {
            return Ok(Some(CachedRowGroup::File(path)));
        }
        let bytes = row_group.fetch(pool)?;
        let result = self.add(&path, &bytes);
        drop(lock);
        if let Err(error) = result {
            if !self.warned.swap(true, Ordering::Relaxed) {
                let folder = self.folder.display();
                tracing::warn!(
                    "cannot write to the cache {folder}: {error}; row groups that it lacks are fetched each time"
                );
            }
            return Ok(Some(CachedRowGroup::Fetched(bytes)));
        }
        let added = self.added.fetch_add(row_group.entry.bytes, Ordering::Relaxed) + row_group.entry.bytes;
        if added > self.limit / SCAN_SHARE
            && let Err(error) = self.evict(|_| self.limit)
        {
            tracing::warn!("cannot list the cache {}: {error}", self.folder.display());
        }
        Ok(Some(CachedRowGroup::File(path)))
    }

    /// Waits while another process or thread fetches the row group. The lock ends with its file
    /// handle or its process.
    fn lock(&self, entry: &BlockEntry) -> Option<File> {
        let number = twox_hash::XxHash3_64::oneshot(file_name(entry).as_bytes()) % LOCKS;
        let file = File::options().create(true).append(true).open(self.folder.join(format!("lock-{number}")));
        // Without locks a row group may be fetched twice, which is harmless.
        file.ok().filter(|file| file.lock().is_ok())
    }

    /// Adds a file. If the disk is full, evicts the least recently used files first.
    fn add(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let written = self.write(path, bytes);
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        if !written.as_ref().is_err_and(|error| full.contains(&error.kind())) {
            return written;
        }
        // Evict more than this file needs, so that the folder is not scanned for each file.
        self.evict(|held| held.saturating_sub((held / SCAN_SHARE).max(bytes.len() as u64)))?;
        self.write(path, bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let unique = RandomState::new().hash_one((SystemTime::now(), std::process::id()));
        let unfinished = self.folder.join(format!("{UNFINISHED}{unique:016x}"));
        let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            // The file may not even exist.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// Removes unfinished files of dead processes, and the least recently used files until the
    /// folder holds at most `limit` bytes. `limit` receives the bytes that the folder holds.
    fn evict(&self, limit: impl Fn(u64) -> u64) -> std::io::Result<()> {
        self.added.store(0, Ordering::Relaxed);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Other processes remove files, too.
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            let used = metadata.modified()?;
            if name.starts_with(UNFINISHED) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(entry.path());
            } else if is_cached_file_name(&name) {
                files.push((used, metadata.len(), entry.path()));
            }
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        let limit = limit(bytes);
        for (_, size, path) in files {
            if bytes <= limit {
                break;
            }
            let _ = fs::remove_file(path);
            bytes -= size;
        }
        Ok(())
    }
}

fn file_name(entry: &BlockEntry) -> String {
    format!("{}-{}", entry.xxh3, entry.bytes)
}

/// Whether a file name is that of a cached row group. Other programs may have put files into the
/// folder.
fn is_cached_file_name(name: &str) -> bool {
    let digits = |text: &str, of: fn(&char) -> bool| !text.is_empty() && text.chars().all(|c| of(&c));
    name.split_once('-').is_some_and(|(checksum, bytes)| {
        checksum.len() == 16
            && digits(checksum, char::is_ascii_hexdigit)
            && digits(bytes, char::is_ascii_digit)
    })
}

/// Whether a cached file is intact. Marks it as recently used.
fn mark_if_intact(path: &Path, entry: &BlockEntry) -> bool {
    let intact = is_intact(path, entry);
    if intact {
        // If the file has gone meanwhile, its rows are read from the dataset.
        let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }
    intact
}

/// Whether a file exists and has the size and checksum of its name.
fn is_intact(path: &Path, entry: &BlockEntry) -> bool {
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
