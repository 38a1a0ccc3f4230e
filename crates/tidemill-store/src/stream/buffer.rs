//! The memory of batches: given back when a batch is dropped and filled again, so that a steady stream neither asks the
//! system for memory nor touches fresh pages, and whoever pins it for a GPU pins it once.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Contiguous bytes of a batch.
pub struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

/// Buffers that wait to be filled.
#[derive(Debug)]
pub(crate) struct Pool {
    waiting: Mutex<Vec<Vec<u8>>>,
    most: usize,
}

impl Pool {
    /// Keeps at most so many buffers.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), most })
    }

    /// A buffer with room for so many bytes, which `fill` fills.
    pub fn fill(self: &Arc<Self>, room: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Buffer {
        let mut bytes = self.take(room);
        bytes.clear();
        bytes.reserve_exact(room);
        fill(&mut bytes);
        Buffer { bytes, pool: self.clone() }
    }

    /// The smallest that is large enough, else none.
    fn take(&self, room: usize) -> Vec<u8> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = waiting.iter().enumerate().filter(|(_, bytes)| bytes.capacity() >= room);
        let best = fitting.min_by_key(|(_, bytes)| bytes.capacity()).map(|(i, _)| i);
        best.map(|i| waiting.swap_remove(i)).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut waiting = self.pool.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < self.pool.most {
            waiting.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let pool = Pool::new(2);
        let filled = |bytes: &[u8]| pool.fill(bytes.len(), |buffer| buffer.extend_from_slice(bytes));
        let (small, large) = (filled(&[1; 10]), filled(&[2; 1000]));
        let places = [small.as_ptr(), large.as_ptr()];
        drop((small, large));
        let (again, anew) = (filled(&[3; 900]), filled(&[4; 5000]));
        assert_eq!((&again[..], again.as_ptr()), (&[3; 900][..], places[1]));
        assert_eq!(anew[..], [4; 5000]);
        drop((again, anew, filled(&[5; 10])));
        assert_eq!(pool.waiting.lock().unwrap().len(), 2, "no more are kept");
    }
}
