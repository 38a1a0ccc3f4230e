//! A range of a file that is mapped into memory. One copy with non-temporal stores moves bytes from
//! the page cache to their destination. It is a quarter faster than `read`, which loads the
//! destination into the processor's caches only to write it back.

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::{Advice, Mmap, MmapOptions};

/// Bytes that are copied and then passed to the observer: few enough to stay in the L1 cache.
const CHUNK_BYTES: usize = 32 << 10;

/// A mapped range of a local file.
#[derive(Debug)]
pub struct MappedRange {
    map: Mmap,
    start: u64,
}

impl MappedRange {
    /// Maps a range of a file. `None` if the system does not allow it, or cannot report pages that
    /// it fails to read (Linux before 5.14).
    pub(crate) fn new(file: &File, range: Range<u64>) -> Option<Self> {
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        // SAFETY: files of datasets and caches are never modified, and no reference to the mapping
        // outlives `copy_to`.
        #[expect(unsafe_code, reason = "another process may write to the file")]
        let map = unsafe { MmapOptions::new().offset(range.start).len(len).map(file) }.ok()?;
        let mapped = Self { map, start: range.start };
        mapped.populate(0, 1).is_ok().then_some(mapped)
    }

    /// Fills `bytes` with the file's content from `offset` on, with the copy function `copy`, and
    /// passes the content to `observe` in chunks.
    ///
    /// # Errors
    /// If the bytes are not within the mapped range, or cannot be read.
    pub fn copy_to(
        &self,
        offset: u64,
        bytes: &mut [u8],
        copy: fn(&[u8], &mut [u8]),
        mut observe: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let start = offset.checked_sub(self.start).and_then(|start| usize::try_from(start).ok());
        let from = start.and_then(|start| self.map.get(start..)?.get(..bytes.len()));
        let (Some(start), Some(from)) = (start, from) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        self.populate(start, bytes.len())?;
        for (from, to) in from.chunks(CHUNK_BYTES).zip(bytes.chunks_mut(CHUNK_BYTES)) {
            copy(from, to);
            observe(from);
        }
        Ok(())
    }

    /// Announces to the system that a range of the file will be read soon, so that it reads ahead.
    pub fn will_need(&self, range: Range<u64>) {
        let start = range.start.saturating_sub(self.start) as usize;
        // Advice may fail: a later read reports the actual error.
        let _ =
            self.map.advise_range(Advice::WillNeed, start, range.end.saturating_sub(range.start) as usize);
    }

    /// Loads pages into memory. Touching a page that cannot be read (damaged disk, truncated file)
    /// would end the process with SIGBUS; this call returns an error instead. SIGBUS remains
    /// possible only if the file is truncated between this call and the copy.
    #[cfg(target_os = "linux")]
    fn populate(&self, start: usize, len: usize) -> io::Result<()> {
        self.map.advise_range(Advice::PopulateRead, start, len)
    }

    #[cfg(not(target_os = "linux"))]
    fn populate(&self, _: usize, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::local::non_temporal_copy::copy_non_temporal;

    #[test]
    fn reading_past_a_truncation_is_an_error_and_not_a_crash() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i % 253) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let (copy, mapped) = (copy_non_temporal, MappedRange::new(&file, 5000..100_000).unwrap());

        let (mut to, mut observed) = (vec![0; 90_000], Vec::new());
        mapped.copy_to(6001, &mut to, copy, |chunk| observed.extend_from_slice(chunk)).unwrap();
        assert!(to == bytes[6001..96_001] && observed == to);
        for outside in [4999, 10_001, u64::MAX] {
            assert!(mapped.copy_to(outside, &mut to, copy, |_| ()).is_err());
        }

        file.set_len(50_000).unwrap();
        assert!(mapped.copy_to(6001, &mut to[..40_000], copy, |_| ()).is_ok());
        assert!(mapped.copy_to(6001, &mut to, copy, |_| ()).is_err());
    }
}
