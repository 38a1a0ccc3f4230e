//! Files of this machine that outlast a loss of power. A system puts names and bytes onto the disk in any order, and the store that
//! writes local objects leaves it at that: a commit could be there, and what it names be hollow or gone. So whoever has put
//! an object finds its bytes and its name on the disk, and may put one that relies on it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use object_store::Result as Stored;
use tokio::task::spawn_blocking;

use crate::error::NoHardLinks;

/// The file of an object that is about to be written.
#[derive(Debug)]
pub(crate) struct Durable {
    path: PathBuf,
    /// The lowest of its folders that was there before: those below it are names in others, which have to be synced, too.
    there: PathBuf,
}

/// Returns once the file that has been written is on the disk, if it is one of this machine.
pub(crate) async fn sync(file: Option<Durable>) -> Stored<()> {
    match file {
        Some(file) => spawn_blocking(move || file.sync_now()).await?.map_err(failure),
        None => Ok(()),
    }
}

impl Durable {
    /// To be called before anything is written.
    pub fn new(path: PathBuf) -> Self {
        let there = path.ancestors().skip(1).find(|folder| folder.is_dir()).map(Path::to_owned);
        Self { path, there: there.unwrap_or_default() }
    }

    /// Writes the file unless there is one: `false` if there was. Its bytes are on the disk before it has its name: of a loss of
    /// power in between a hollow commit would be left, which could not be put again.
    pub async fn create(self, bytes: Bytes) -> Stored<bool> {
        spawn_blocking(move || self.create_now(&bytes)).await?
    }

    fn create_now(&self, bytes: &[u8]) -> Stored<bool> {
        let (mut file, staged) = self.stage().map_err(failure)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failure);
        let created = written.and_then(|()| link(&staged, &self.path));
        // By now it has its name or is of no use. One that stays is shown to nobody.
        let _ = fs::remove_file(&staged);
        let created = created?;
        // If it was there, whoever has put it may not have come this far.
        self.sync_folders().map_err(failure)?;
        Ok(created)
    }

    /// A new file beside it, named as the store names what is being written; see `unfinished`.
    fn stage(&self) -> io::Result<(File, PathBuf)> {
        let mut number = 1;
        loop {
            let mut staged = self.path.clone().into_os_string();
            staged.push(format!("#{number}"));
            match File::create_new(&staged) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) if error.kind() == ErrorKind::NotFound => self.make_folder()?,
                made => return Ok((made?, staged.into())),
            }
        }
    }

    fn make_folder(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), fs::create_dir_all)
    }

    fn sync_now(&self) -> io::Result<()> {
        File::open(&self.path).and_then(|file| file.sync_all()).and_then(|()| self.sync_folders())
    }

    /// Syncs the folder that the file is in, and those that this one and others were made in.
    fn sync_folders(&self) -> io::Result<()> {
        for folder in self.path.ancestors().skip(1) {
            sync_folder(folder)?;
            if folder == self.there {
                break;
            }
        }
        Ok(())
    }
}

/// Where a folder cannot be synced, on many network file systems for instance, nobody can do more.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if is_not_synced(&error) => Ok(()),
        synced => synced,
    }
}

/// Whether a folder cannot be synced at all, or not be opened by one who may well write to it.
fn is_not_synced(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied)
}

/// Gives a file a second name unless something has it: `false` if so. Of any number of callers one gets `true`, which no
/// other call promises.
fn link(staged: &Path, name: &Path) -> Stored<bool> {
    match fs::hard_link(staged, name) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) if is_no_link(&error) => Err(failure(NoHardLinks(error))),
        Err(error) => Err(failure(error)),
    }
}

/// Whether a file cannot have a second name at all, in a folder where one could be made.
fn is_no_link(error: &io::Error) -> bool {
    use ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(error.kind(), PermissionDenied | Unsupported | TooManyLinks | CrossesDevices)
}

fn failure(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic { store: "local", source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_created_once_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/folders/commit.json");
        let file = || Durable::new(path.clone());
        assert_eq!(file().there, folder.path());
        assert!(file().create_now(b"ours").unwrap());
        assert_eq!(file().there, folder.path().join("new/folders"));
        assert!(!file().create_now(b"theirs").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert_eq!(fs::read_dir(folder.path().join("new/folders")).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_has_left_is_not_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("commit.json#1"), "half").unwrap();
        let file = Durable::new(folder.path().join("commit.json"));
        assert!(file.create_now(b"whole").unwrap());
        assert_eq!(fs::read(folder.path().join("commit.json")).unwrap(), b"whole");
        assert_eq!(fs::read(folder.path().join("commit.json#1")).unwrap(), b"half");
    }

    #[test]
    fn a_file_that_cannot_be_synced_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Durable::new(folder.path().join("gone")).sync_now().is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_file_system_cannot_do_is_told_from_what_fails() {
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
        for (name, code, not_synced, no_link) in cases {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!((is_not_synced(&error), is_no_link(&error)), (not_synced, no_link), "{name}");
        }
    }
}
