//! The members of a zip archive, sorted by key: its directory is known before anything is read.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{Read, Seek};

use zip::ZipArchive;

use crate::source::records::sample::SampleOptions;
use crate::source::webdataset::members::{ArchiveError, Member, Members};

/// The first bytes of a zip archive, and of an empty one.
const SIGNATURES: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// Whether a file that starts with these bytes is a zip archive.
pub fn is_zip(start: &[u8]) -> bool {
    SIGNATURES.iter().any(|signature| start.starts_with(signature))
}

/// The files of a zip archive.
pub struct ZipMembers<R> {
    /// The archive, or the error of its directory until it is reported.
    archive: Result<ZipArchive<R>, Option<ArchiveError>>,
    /// Index and name of the files, by key.
    files: std::vec::IntoIter<(usize, String)>,
    /// The last member.
    current: (usize, String),
}

impl<R: Read + Seek> ZipMembers<R> {
    /// Reads the directory.
    pub fn new(reader: R, options: &SampleOptions) -> Self {
        let archive = ZipArchive::new(reader);
        let archive =
            archive.map_err(|e| Some(ArchiveError::Cut(format!("container: the zip archive: {e}"))));
        let mut files: Vec<(String, usize, String)> = Vec::new();
        if let Ok(archive) = &archive {
            for (index, name) in archive.file_names().enumerate() {
                // A name in an unknown encoding has no key either.
                let name = name.map(Cow::into_owned).unwrap_or_default();
                let key = options.split_name(&name).map(|(key, _)| key.to_owned());
                files.extend(key.map(|key| (key, index, name)));
            }
        }
        files.sort();
        let files: Vec<_> = files.into_iter().map(|(_, index, name)| (index, name)).collect();
        Self { archive, files: files.into_iter(), current: (0, String::new()) }
    }
}

impl<R: Read + Seek> Members for ZipMembers<R> {
    fn next(&mut self) -> Result<Option<Member>, ArchiveError> {
        let archive = match &mut self.archive {
            Ok(archive) => archive,
            Err(error) => return error.take().map_or(Ok(None), Err),
        };
        let Some((index, name)) = self.files.next() else { return Ok(None) };
        // A damaged header is reported when the data is read.
        let size = archive.by_index_raw(index).map_or(0, |file| file.size());
        self.current = (index, name.clone());
        Ok(Some(Member { size, name }))
    }

    fn read_data(&mut self) -> Result<Vec<u8>, ArchiveError> {
        let Ok(archive) = &mut self.archive else { return Ok(Vec::new()) };
        let (index, name) = &self.current;
        let error = |e: &dyn Display| ArchiveError::Member(format!("container: zip: `{name}`: {e}"));
        let mut file = archive.by_index(*index).map_err(|e| error(&e))?;
        // The buffer grows as bytes are read: a damaged size must not allocate.
        let mut data = Vec::new();
        let most = file.size() + 1;
        file.by_ref().take(most).read_to_end(&mut data).map_err(|e| error(&e))?;
        Ok(data)
    }
}
