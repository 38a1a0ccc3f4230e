//! An object's bytes in order, as the blocking `Read` that the container parsers want: fetched by range on the
//! source's thread, a few chunks ahead of the reader.

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

/// Most bytes fetched at once.
const CHUNK: u64 = 4 << 20;

/// Bytes fetched at once where reading may end any moment, and the least otherwise.
const LAST_CHUNK: u64 = 64 << 10;

/// Chunks asked for ahead of the reader. With the one being read, an open object holds 1 + `AHEAD` chunks.
const AHEAD: usize = 2;

/// Set once the object could not be fetched any further, in contrast to what is wrong with its content: parsers see
/// both as an `io::Error`.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<Error>>>);

impl Failure {
    /// The error that ends the run, if there is one. It is given once.
    pub fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, error: Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// An object being read from some offset to its end.
pub struct ObjectStream {
    runtime: &'static Runtime,
    address: Address,
    e_tag: Option<String>,
    /// First byte that nobody has asked for.
    next: u64,
    /// Chunks below this offset are asked for ahead of time.
    wanted: u64,
    size: u64,
    /// Bytes fetched at once.
    chunk: u64,
    coming: VecDeque<JoinHandle<Result<Bytes>>>,
    current: Bytes,
    failure: Failure,
}

impl ObjectStream {
    /// Starts reading where `wanted` starts. All of it will certainly be read, what is behind it perhaps. Holds no more
    /// than `room` bytes at a time, but for very little room.
    ///
    /// # Errors
    /// If the URI cannot be understood.
    pub fn open(runtime: &'static Runtime, file: &InputFile, wanted: Range<u64>, room: u64) -> Result<Self> {
        Ok(Self {
            address: uri::parse(&file.uri)?,
            e_tag: file.e_tag.clone(),
            runtime,
            next: wanted.start,
            wanted: wanted.end,
            chunk: (room / (1 + AHEAD as u64)).clamp(LAST_CHUNK, CHUNK),
            size: file.size,
            coming: VecDeque::new(),
            current: Bytes::new(),
            failure: Failure::default(),
        })
    }

    /// Where to look when a parser has met an `io::Error`.
    pub fn failure(&self) -> Failure {
        self.failure.clone()
    }

    fn ask_ahead(&mut self) {
        while self.next < self.size
            && self.coming.len() <= AHEAD
            && (self.next < self.wanted || self.coming.is_empty())
        {
            let end = match self.next < self.wanted {
                true => (self.next + self.chunk).min(self.wanted),
                false => self.next + LAST_CHUNK,
            };
            let range = self.next..end.min(self.size);
            self.next = range.end;
            let fetch = fetch(self.address.clone(), self.e_tag.clone(), range);
            self.coming.push_back(self.runtime.spawn(fetch));
        }
    }

    /// The next bytes; none at the end.
    fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        self.ask_ahead();
        let Some(chunk) = self.coming.pop_front() else { return Ok(None) };
        let chunk = self.runtime.block_on(chunk);
        chunk.map_err(|e| Error::Read { file: self.address.uri(), problem: e.to_string() })?.map(Some)
    }
}

async fn fetch(address: Address, e_tag: Option<String>, range: Range<u64>) -> Result<Bytes> {
    let bytes = address.get_ranges(std::slice::from_ref(&range), e_tag.as_deref()).await?;
    let bytes = bytes.into_iter().next().unwrap_or_default();
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
                    // Nothing more can come.
                    (self.next, self.size) = (0, 0);
                    self.coming.clear();
                    let told = io::Error::other(error.to_string());
                    self.failure.set(error);
                    return Err(told);
                }
            }
        }
        let n = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}
