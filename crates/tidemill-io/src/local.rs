//! A file of this machine, read without asking for memory and on the caller's thread.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::mapped::Mapped;

/// A file that is open for reading.
#[derive(Debug)]
pub struct LocalFile {
    file: File,
    /// For messages.
    uri: String,
}

impl LocalFile {
    /// Opens a file, which messages call `uri`.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn open(path: &Path, uri: String) -> Result<Self> {
        match File::open(path) {
            Ok(file) => Ok(Self { file, uri }),
            Err(error) => Err(failure(&uri, error)),
        }
    }

    /// Fills `bytes` with those of the file from `offset` on.
    ///
    /// # Errors
    /// [`Error::Storage`], also if the file is shorter.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|error| failure(&self.uri, error))
    }

    /// Some of its bytes, mapped into memory; none if the system does not let us.
    pub fn map(&self, range: Range<u64>) -> Option<Mapped> {
        Mapped::new(&self.file, range)
    }
}

fn failure(uri: &str, error: io::Error) -> Error {
    let not_found = error.kind() == io::ErrorKind::NotFound;
    let (path, source) = (uri.to_owned(), error.into());
    let source = match not_found {
        true => object_store::Error::NotFound { path, source },
        false => object_store::Error::Generic { store: "file", source },
    };
    Error::Storage { action: "read", uri: uri.to_owned(), source }
}
