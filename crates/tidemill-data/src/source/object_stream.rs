//! An object's bytes in order, as the blocking `Read` that the container parsers use. Ranges are
//! fetched on the I/O runtime, a few chunks ahead of the reader.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf, Bytes};
use tidemill_io::{Address, uri};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::source::units::InputFile;

/// Most bytes of one request.
const MAX_CHUNK_BYTES: u64 = 4 << 20;

/// Bytes of one request behind the range that is certainly read, and the least otherwise.
const MIN_CHUNK_BYTES: u64 = 64 << 10;

/// Chunks that are fetched ahead of the reader. With the one being read, an open object holds 1 +
/// `PREFETCHED_CHUNKS` chunks.
const PREFETCHED_CHUNKS: usize = 2;

/// The error of fetching the object, if there was one. Parsers see both fetch errors and damaged
/// content as an `io::Error`; this tells them apart.
#[derive(Clone, Default)]
pub struct StreamFailure(Arc<Mutex<Option<Error>>>);

impl StreamFailure {
    /// Takes the error that ends the run, if there is one.
    pub fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn set(&self, error: Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// An object that is read from some offset to its end.
pub struct ObjectStream {
    runtime: &'static Runtime,
    address: Address,
    e_tag: Option<String>,
    /// Offset of the first byte that has not been requested.
    next: u64,
    /// Chunks below this offset are fetched ahead of the reader.
    prefetch_end: u64,
    size: u64,
    /// Bytes of one request.
    chunk_bytes: u64,
    pending: VecDeque<JoinHandle<Result<Bytes>>>,
    current: Bytes,
    failure: StreamFailure,
}

impl ObjectStream {
    /// Starts to read at the start of `wanted`. All of this range will certainly be read, the bytes
    /// behind it perhaps. Holds at most about `max_bytes`.
    ///
    /// # Errors
    /// If the URI is malformed.
    pub fn open(
        runtime: &'static Runtime,
        file: &InputFile,
        wanted: Range<u64>,
        max_bytes: u64,
    ) -> Result<Self> {
        Ok(Self {
            address: uri::parse(&file.uri)?,
            e_tag: file.e_tag.clone(),
            runtime,
            next: wanted.start,
            prefetch_end: wanted.end,
            chunk_bytes: (max_bytes / (1 + PREFETCHED_CHUNKS as u64)).clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES),
            size: file.size,
            pending: VecDeque::new(),
            current: Bytes::new(),
            failure: StreamFailure::default(),
        })
    }

    /// The place where the error is stored if a fetch fails. A parser that meets an `io::Error`
    /// looks there for the cause.
    pub fn failure(&self) -> StreamFailure {
        self.failure.clone()
    }

    fn start_fetches(&mut self) {
        while self.next < self.size
            && self.pending.len() <= PREFETCHED_CHUNKS
            && (self.next < self.prefetch_end || self.pending.is_empty())
        {
            let end = match self.next < self.prefetch_end {
                true => (self.next + self.chunk_bytes).min(self.prefetch_end),
                false => self.next + MIN_CHUNK_BYTES,
            };
            let range = self.next..end.min(self.size);
            self.next = range.end;
            let fetch = fetch_range(self.address.clone(), self.e_tag.clone(), range);
            self.pending.push_back(self.runtime.spawn(fetch));
        }
    }

    /// The next chunk; `None` at the end.
    fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        self.start_fetches();
        let Some(chunk) = self.pending.pop_front() else { return Ok(None) };
        let chunk = self.runtime.block_on(chunk);
        chunk.map_err(|e| Error::Read { file: self.address.uri(), problem: e.to_string() })?.map(Some)
    }
}

/// Fetches a range of an object.
///
/// # Errors
/// If the store fails, or returns another number of bytes.
pub(super) async fn fetch_range(address: Address, e_tag: Option<String>, range: Range<u64>) -> Result<Bytes> {
    let bytes = address.get_range(range.clone(), e_tag.as_deref()).await?;
    if bytes.len() as u64 == range.end - range.start {
        return Ok(bytes);
    }
    let problem = format!("{} bytes came for {range:?}", bytes.len());
    Err(Error::Read { file: address.uri(), problem })
}

impl Read for ObjectStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.next_chunk() {
                Ok(Some(bytes)) => self.current = bytes,
                Ok(None) => return Ok(0),
                Err(error) => {
                    // Nothing more can be read after an error.
                    (self.next, self.size) = (0, 0);
                    self.pending.clear();
                    let shown = io::Error::other(error.to_string());
                    self.failure.set(error);
                    return Err(shown);
                }
            }
        }
        let count = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
