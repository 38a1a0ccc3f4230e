//! An object as the blocking `Read` and `Seek` that readers of archives use.

use std::io::{self, Read, Seek, SeekFrom};

use bytes::Bytes;
use tidemill_io::{Address, uri};
use tokio::runtime::Runtime;

use crate::error::Result;
use crate::source::object_stream::{StreamFailure, fetch_range};
use crate::source::units::InputFile;

/// Bytes of a request. Archives are mostly read forwards.
const CHUNK_BYTES: u64 = 1 << 20;

/// An object that is read at any offset.
pub struct SeekableObject {
    runtime: &'static Runtime,
    address: Address,
    e_tag: Option<String>,
    size: u64,
    at: u64,
    /// The bytes that were fetched last, and their offset. Readers of zips seek back and forth within
    /// a member's header.
    chunk: Bytes,
    chunk_start: u64,
    failure: StreamFailure,
}

impl SeekableObject {
    /// Opens an object at its start.
    ///
    /// # Errors
    /// If the URI is malformed.
    pub fn open(runtime: &'static Runtime, file: &InputFile) -> Result<Self> {
        Ok(Self {
            runtime,
            address: uri::parse(&file.uri)?,
            e_tag: file.e_tag.clone(),
            size: file.size,
            at: 0,
            chunk: Bytes::new(),
            chunk_start: 0,
            failure: StreamFailure::default(),
        })
    }

    /// The place where the error is stored if a fetch fails.
    pub fn failure(&self) -> StreamFailure {
        self.failure.clone()
    }

    /// The bytes from `at` on that are there; none at the end.
    fn available(&mut self) -> Result<&[u8]> {
        let skipped = |object: &Self| usize::try_from(object.at.checked_sub(object.chunk_start)?).ok();
        if self.at < self.size && skipped(self).is_none_or(|skipped| skipped >= self.chunk.len()) {
            let range = self.at..self.size.min(self.at + CHUNK_BYTES);
            let fetched = fetch_range(self.address.clone(), self.e_tag.clone(), range);
            (self.chunk, self.chunk_start) = (self.runtime.block_on(fetched)?, self.at);
        }
        Ok(skipped(self).and_then(|skipped| self.chunk.get(skipped..)).unwrap_or_default())
    }
}

impl Read for SeekableObject {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let failure = self.failure.clone();
        let available = self.available().map_err(|error| {
            let shown = io::Error::other(error.to_string());
            failure.set(error);
            shown
        })?;
        let count = buffer.len().min(available.len());
        buffer[..count].copy_from_slice(&available[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for SeekableObject {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        let target = match position {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.size.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        self.at = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
