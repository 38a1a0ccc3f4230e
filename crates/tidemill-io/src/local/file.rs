//! A local file that is read with positioned reads on the caller's thread, without allocating
//! memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::local::mapped_file::MappedRange;

/// A local file that is open for reading.
#[derive(Debug)]
pub struct LocalFile {
    file: File,
    /// The file's URI, for messages.
    uri: String,
}

impl LocalFile {
    /// Opens the file at `path`. Messages name it `uri`.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn open(path: &Path, uri: String) -> Result<Self> {
        match File::open(path) {
            Ok(file) => Ok(Self { file, uri }),
            Err(error) => Err(read_error(&uri, error)),
        }
    }

    /// Fills `bytes` with the file's content from `offset` on.
    ///
    /// # Errors
    /// [`Error::Storage`], also if the file is shorter.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|error| read_error(&self.uri, error))
    }

    /// Maps a range of the file into memory; `None` if the system does not support it.
    pub fn map(&self, range: Range<u64>) -> Option<MappedRange> {
        MappedRange::new(&self.file, range)
    }
}

fn read_error(uri: &str, error: io::Error) -> Error {
    let is_not_found = error.kind() == io::ErrorKind::NotFound;
    let (path, source) = (uri.to_owned(), error.into());
    let source = match is_not_found {
        true => object_store::Error::NotFound { path, source },
        false => object_store::Error::Generic { store: "file", source },
    };
    Error::Storage { action: "read", uri: uri.to_owned(), source }
}
