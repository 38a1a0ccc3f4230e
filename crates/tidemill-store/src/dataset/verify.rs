//! Verification: compares sizes, checksums and row counts of all files with what was committed.

use std::hash::Hasher;

use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaDataReader;
use serde::Serialize;
use tidemill_io::{Checksum, Location};
use twox_hash::XxHash3_64;

use crate::dataset::commit::FileEntry;
use crate::dataset::reader::Dataset;
use crate::error::Result;

/// Bytes read at a time.
const CHUNK: u64 = 16 << 20;

/// Bytes at the end of a file that hold most footers.
const FOOTER: u64 = 64 << 10;

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Number of files checked.
    pub files: u64,
    /// Total size of the files in bytes, as committed.
    pub bytes: u64,
    /// The files that differ from what was committed.
    pub damaged: Vec<Damage>,
}

/// A file that differs from what was committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Path or URI of the file.
    pub path: String,
    /// What is wrong with the file.
    pub problem: String,
    /// Key of the commit to remove, so that preprocessing writes the unit again.
    pub commit: String,
}

impl Dataset {
    /// Reads every file of the snapshot and compares it with its commit. `progress` receives the
    /// number of bytes done.
    ///
    /// # Errors
    /// If the manifest cannot be read, or if the store fails, because a store failure says nothing
    /// about a file.
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Verification> {
        let mut result = Verification::default();
        for commit in &self.manifest()?.commits {
            for file in &commit.files {
                if let Some(problem) = find_damage(self.location(), file)? {
                    let (path, commit) = (self.location().uri_of(&file.path), commit.id.commit_key());
                    result.damaged.push(Damage { path, problem, commit });
                }
                result.files += 1;
                result.bytes += file.bytes;
                progress(result.bytes);
            }
        }
        Ok(result)
    }
}

/// Describes what is wrong with a file, or returns `None` if it is intact.
fn find_damage(location: &Location, file: &FileEntry) -> Result<Option<String>> {
    let size = match location.size(&file.path) {
        Err(error) if error.is_not_found() => return Ok(Some(error.to_string())),
        size => size?,
    };
    if size != file.bytes {
        return Ok(Some(format!("has {size} bytes, {} were committed", file.bytes)));
    }
    let mut hasher = XxHash3_64::new();
    for start in (0..file.bytes).step_by(CHUNK as usize) {
        hasher.write(&location.get_range(&file.path, start..(start + CHUNK).min(file.bytes))?);
    }
    let found = Checksum::from(&hasher);
    if found != file.xxh3 {
        return Ok(Some(format!("has the checksum {found}, {} was committed", file.xxh3)));
    }
    Ok(match read_footer_rows(location, file)? {
        Ok(rows) if u64::try_from(rows) == Ok(file.rows) => None,
        Ok(rows) => Some(format!("has {rows} rows, {} were committed", file.rows)),
        Err(error) => Some(format!("has no readable footer: {error}")),
    })
}

fn read_footer_rows(location: &Location, file: &FileEntry) -> Result<std::result::Result<i64, ParquetError>> {
    let mut wanted = FOOTER;
    loop {
        let start = file.bytes.saturating_sub(wanted);
        let end = location.get_range(&file.path, start..file.bytes)?;
        let mut reader = ParquetMetaDataReader::new();
        match reader.try_parse_sized(&end, file.bytes).and_then(|()| reader.finish()) {
            Ok(metadata) => return Ok(Ok(metadata.file_metadata().num_rows())),
            Err(ParquetError::NeedMoreData(bytes)) if bytes as u64 > wanted => wanted = bytes as u64,
            Err(error) => return Ok(Err(error)),
        }
    }
}
