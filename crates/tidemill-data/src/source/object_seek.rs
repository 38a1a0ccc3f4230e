//! An object as the blocking `Read` and `Seek` that readers of archives use.

use std::io::{self, Read, Seek, SeekFrom};

use bytes::{Buf, Bytes};
use tidemill_io::{Address, uri};
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::source::object_stream::StreamFailure;
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
    /// Bytes from `at` on that have been fetched.
    fetched: Bytes,
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
            fetched: Bytes::new(),
            failure: StreamFailure::default(),
        })
    }

    /// The place where the error is stored if a fetch fails.
    pub fn failure(&self) -> StreamFailure {
        self.failure.clone()
    }

    fn fetch(&self) -> Result<Bytes> {
        let range = self.at..self.size.min(self.at + CHUNK_BYTES);
        let wanted = range.end - range.start;
        let fetched = self.address.get_ranges(std::slice::from_ref(&range), self.e_tag.as_deref());
        let bytes = self.runtime.block_on(fetched)?.into_iter().next().unwrap_or_default();
        if bytes.len() as u64 == wanted {
            return Ok(bytes);
        }
        let problem = format!("{} bytes came for {range:?}", bytes.len());
        Err(Error::Read { file: self.address.uri(), problem })
    }
}

impl Read for SeekableObject {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.fetched.is_empty() && self.at < self.size {
            self.fetched = self.fetch().map_err(|error| {
                let shown = io::Error::other(error.to_string());
                self.failure.set(error);
                shown
            })?;
        }
        let count = buffer.len().min(self.fetched.len());
        self.fetched.copy_to_slice(&mut buffer[..count]);
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
        let target = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        match target.checked_sub(self.at).and_then(|skipped| usize::try_from(skipped).ok()) {
            Some(skipped) if skipped <= self.fetched.len() => self.fetched.advance(skipped),
            _ => self.fetched = Bytes::new(),
        }
        self.at = target;
        Ok(target)
    }
}
