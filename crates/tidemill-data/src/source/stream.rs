//! An object's bytes in order, as the blocking `Read` that the container parsers want: fetched by range on the
//! source's thread, a few chunks ahead of the reader.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tidemill_io::uri;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::InputFile;
use crate::error::{Error, Result};

/// Most bytes fetched at once.
const CHUNK: u64 = 4 << 20;

/// Bytes fetched at once where reading may end any moment, and the least otherwise.
const LAST_CHUNK: u64 = 64 << 10;

/// Chunks asked for ahead of the reader. With the one being read, an open object holds 1 + `AHEAD` chunks.
const AHEAD: usize = 2;

/// Set once the object could not be fetched any further, in contrast to what is wrong with its content: parsers see
/// both as an `io::Error`.
#[derive(Clone, Default)]
pub struct Failure(Arc<OnceLock<String>>);

impl Failure {
    /// The error that ends the run, if there is one.
    pub fn error(&self, file: &InputFile) -> Option<Error> {
        let problem = self.0.get()?.clone();
        Some(Error::Read { file: file.uri.clone(), problem })
    }
}

/// An object being read from some offset to its end.
pub struct ObjectStream {
    runtime: &'static Runtime,
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// First byte that nobody has asked for.
    next: u64,
    /// Chunks below this offset are asked for ahead of time.
    wanted: u64,
    size: u64,
    /// Bytes fetched at once.
    chunk: u64,
    coming: VecDeque<JoinHandle<object_store::Result<Bytes>>>,
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
        let location = uri::parse(&file.uri)?;
        Ok(Self {
            path: location.key()?,
            store: location.store,
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
            let (store, path) = (self.store.clone(), self.path.clone());
            self.coming.push_back(self.runtime.spawn(async move {
                let bytes = store.get_range(&path, range.clone()).await?;
                match bytes.len() as u64 == range.end - range.start {
                    true => Ok(bytes),
                    false => Err(object_store::Error::Generic {
                        store: "object",
                        source: format!("{} bytes came for {range:?}; it changed meanwhile", bytes.len())
                            .into(),
                    }),
                }
            }));
        }
    }
}

impl Read for ObjectStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            self.ask_ahead();
            let Some(chunk) = self.coming.pop_front() else { return Ok(0) };
            let chunk = self.runtime.block_on(chunk).map_err(|e| e.to_string());
            match chunk.and_then(|chunk| chunk.map_err(|e| e.to_string())) {
                Ok(bytes) => self.current = bytes,
                Err(problem) => {
                    // Nothing more can come.
                    (self.next, self.size) = (0, 0);
                    self.coming.clear();
                    return Err(io::Error::other(self.failure.0.get_or_init(|| problem).clone()));
                }
            }
        }
        let n = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}
