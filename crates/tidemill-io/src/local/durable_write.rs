//! Local files that survive a loss of power: fsync, and create-if-absent by hard link.
//!
//! A system writes names and bytes to the disk in any order, and object_store's local store does
//! not sync. After a loss of power a commit could exist while the files that it names are empty or
//! missing. So every write here returns only after both the bytes and the name are on the disk.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use object_store::Result as StoreResult;
use tokio::task::spawn_blocking;

use crate::error::NoHardLinks;

/// The local file of an object that is about to be written.
#[derive(Debug)]
pub(crate) struct DurableFile {
    path: PathBuf,
    /// The lowest folder of the path that existed before the write. The folders below it are new
    /// entries in their parents, which must be synced as well.
    lowest_existing_folder: PathBuf,
}

/// Syncs a file that has been written, if the object is a local file.
pub(crate) async fn sync_if_local(file: Option<DurableFile>) -> StoreResult<()> {
    match file {
        Some(file) => spawn_blocking(move || file.sync_blocking()).await?.map_err(to_store_error),
        None => Ok(()),
    }
}

impl DurableFile {
    /// Prepares a durable write to `path`. Must be called before anything is written.
    pub fn new(path: PathBuf) -> Self {
        let folder = path.ancestors().skip(1).find(|folder| folder.is_dir()).map(Path::to_owned);
        Self { path, lowest_existing_folder: folder.unwrap_or_default() }
    }

    /// Writes the file unless it exists; returns `false` if it existed. The bytes are on the disk
    /// before the file gets its name. Otherwise a loss of power in between would leave an empty
    /// commit, which could never be written again.
    pub async fn create_if_absent(self, bytes: Bytes) -> StoreResult<bool> {
        spawn_blocking(move || self.create_blocking(&bytes)).await?
    }

    fn create_blocking(&self, bytes: &[u8]) -> StoreResult<bool> {
        let (mut file, staged) = self.create_staged().map_err(to_store_error)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(to_store_error);
        let created = written.and_then(|()| hard_link_if_absent(&staged, &self.path));
        // The staged name is not needed any more. If it cannot be removed, listings do not show it.
        let _ = fs::remove_file(&staged);
        let created = created?;
        // Also if the file existed: its writer may not have synced the folders yet.
        self.sync_folders().map_err(to_store_error)?;
        Ok(created)
    }

    /// Creates a temporary file beside the final one. Its name follows object_store's pattern for
    /// unfinished files; see `location::unfinished_files`.
    fn create_staged(&self) -> io::Result<(File, PathBuf)> {
        let mut number = 1;
        loop {
            let mut staged = self.path.clone().into_os_string();
            staged.push(format!("#{number}"));
            match File::create_new(&staged) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) if error.kind() == ErrorKind::NotFound => self.create_folder()?,
                created => return Ok((created?, staged.into())),
            }
        }
    }

    fn create_folder(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), fs::create_dir_all)
    }

    fn sync_blocking(&self) -> io::Result<()> {
        File::open(&self.path).and_then(|file| file.sync_all()).and_then(|()| self.sync_folders())
    }

    /// Syncs the file's folder, and every parent in which a new folder was created.
    fn sync_folders(&self) -> io::Result<()> {
        for folder in self.path.ancestors().skip(1) {
            sync_folder(folder)?;
            if folder == self.lowest_existing_folder {
                break;
            }
        }
        Ok(())
    }
}

/// Syncs a folder. Many network file systems cannot do that; then the write counts as done.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if is_sync_unsupported(&error) => Ok(()),
        result => result,
    }
}

/// Whether a folder cannot be synced at all, or cannot be opened although it may be written to.
fn is_sync_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied)
}

/// Gives a file a second name unless the name is taken; returns `false` if it is taken. Of any
/// number of concurrent callers exactly one gets `true`. No other file operation guarantees that.
fn hard_link_if_absent(staged: &Path, name: &Path) -> StoreResult<bool> {
    match fs::hard_link(staged, name) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) if is_hard_link_unsupported(&error) => Err(to_store_error(NoHardLinks(error))),
        Err(error) => Err(to_store_error(error)),
    }
}

/// Whether the file system has no hard links, in a folder where a file could be created.
fn is_hard_link_unsupported(error: &io::Error) -> bool {
    use ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(error.kind(), PermissionDenied | Unsupported | TooManyLinks | CrossesDevices)
}

fn to_store_error(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic { store: "local", source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_created_once_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/folders/commit.json");
        let file = || DurableFile::new(path.clone());
        assert_eq!(file().lowest_existing_folder, folder.path());
        assert!(file().create_blocking(b"ours").unwrap());
        assert_eq!(file().lowest_existing_folder, folder.path().join("new/folders"));
        assert!(!file().create_blocking(b"theirs").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert_eq!(fs::read_dir(folder.path().join("new/folders")).unwrap().count(), 1);
    }

    #[test]
    fn a_killed_writers_temporary_file_does_not_block_the_next_writer() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("commit.json#1"), "half").unwrap();
        let file = DurableFile::new(folder.path().join("commit.json"));
        assert!(file.create_blocking(b"whole").unwrap());
        assert_eq!(fs::read(folder.path().join("commit.json")).unwrap(), b"whole");
        assert_eq!(fs::read(folder.path().join("commit.json#1")).unwrap(), b"half");
    }

    #[test]
    fn syncing_a_missing_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(DurableFile::new(folder.path().join("gone")).sync_blocking().is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn unsupported_operations_are_told_apart_from_failures() {
        let cases = [
            ("EPERM", 1, true, true),
            ("EIO", 5, false, false),
            ("EACCES", 13, true, true),
            ("EXDEV", 18, false, true),
            ("EINVAL", 22, true, false),
            ("ENOSPC", 28, false, false),
            ("EMLINK", 31, false, true),
            ("ENOSYS", 38, true, true),
            ("EOPNOTSUPP", 95, true, true),
            ("ESTALE", 116, false, false),
        ];
        for (name, code, no_sync, no_link) in cases {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(
                (is_sync_unsupported(&error), is_hard_link_unsupported(&error)),
                (no_sync, no_link),
                "{name}"
            );
        }
    }
}
