//! Pooled buffers. A dropped buffer returns its memory to the pool and is filled again, so that a
//! steady stream neither allocates nor touches fresh pages, and a caller that pins batches for a
//! GPU pins each buffer only once.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapMut};

/// Buffers of at least this many bytes are mapped as huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A contiguous buffer of bytes.
pub struct Buffer {
    /// The memory, which may be larger than the buffer.
    bytes: Memory,
    len: usize,
    pool: Arc<BufferPool>,
}

/// Memory that the system provides zeroed and that costs nothing before it is written to.
#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    /// Huge pages, where the system has them: hundreds of times fewer page faults.
    Pages(MmapMut),
}

impl Memory {
    fn zeros(len: usize) -> Self {
        if len >= HUGE_PAGE_BYTES
            && let Ok(pages) = MmapMut::map_anon(len)
        {
            // The advice may be ignored, so a failure does not matter.
            let _ = pages.advise(Advice::HugePage);
            return Self::Pages(pages);
        }
        Self::Heap(vec![0; len])
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(bytes) => bytes,
        }
    }
}

/// A pool of buffers that wait to be filled again.
#[derive(Debug)]
pub(crate) struct BufferPool {
    waiting: Mutex<Vec<Memory>>,
    capacity: usize,
}

impl BufferPool {
    /// A pool that keeps at most `most` unused buffers.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), capacity })
    }

    /// Returns a buffer of `len` bytes to write to. Its content is undefined.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Buffer {
        let bytes = self.take(len).unwrap_or_else(|| Memory::zeros(len));
        Buffer { bytes, len, pool: self.clone() }
    }

    /// Takes the smallest memory that is large enough and at most twice as large.
    fn take(&self, len: usize) -> Option<Memory> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = waiting.iter().enumerate().filter(|(_, bytes)| (len..=2 * len).contains(&bytes.len()));
        let best = fitting.min_by_key(|(_, bytes)| bytes.len()).map(|(i, _)| i);
        best.map(|i| waiting.remove(i))
    }
}

impl Buffer {
    /// The bytes, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// Shortens the buffer to its first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

/// Wraps bytes that do not come from a pool.
impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len(), bytes: Memory::Heap(bytes), pool: BufferPool::new(0) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut waiting = self.pool.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(bytes);
        // The memory that has waited longest has a size that is no longer in use.
        let oldest = (waiting.len() > self.pool.capacity).then(|| waiting.remove(0));
        drop(waiting);
        drop(oldest);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffer_holds_its_bytes() {
        let pool = BufferPool::new(2);
        let mut buffer = pool.buffer(HUGE_PAGE_BYTES + 1);
        buffer.bytes_mut().fill(7);
        assert_eq!(buffer[..], vec![7; HUGE_PAGE_BYTES + 1]);
    }

    #[test]
    fn memory_of_dropped_buffers_is_reused() {
        let pool = BufferPool::new(2);
        let filled = |len, value| {
            let mut buffer = pool.buffer(len);
            buffer.bytes_mut().fill(value);
            buffer
        };
        let (small, large) = (filled(10, 1), filled(1000, 2));
        let pointer = large.as_ptr();
        drop((small, large));
        let (again, fresh) = (filled(900, 3), filled(100, 4));
        assert_eq!((&again[..], again.as_ptr()), (&[3; 900][..], pointer));
        assert_eq!(fresh[..], [4; 100], "1,000 bytes would have been too many");
        let mut fresh = fresh;
        fresh.truncate(7);
        assert_eq!(fresh[..], [4; 7]);
        drop((again, fresh));
        let lengths: Vec<usize> = pool.waiting.lock().unwrap().iter().map(|bytes| bytes.len()).collect();
        assert_eq!(lengths, [1000, 100], "no more than two, and the oldest goes first");
    }
}
