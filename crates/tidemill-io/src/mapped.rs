//! Bytes of a file that are mapped into memory. From the page cache to where they are needed is one copy by
//! stores past the processor's caches, a quarter faster than `read`, which brings the destination into the caches only
//! to write it back.

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::{Advice, Mmap, MmapOptions};

/// Bytes that are copied and then looked at: few enough to stay in the nearest caches in between.
const PIECE: usize = 32 << 10;

/// Shorter copies do not go past the caches.
#[cfg(target_arch = "x86_64")]
const LARGE: usize = 4 << 10;

/// A range of a file of this machine.
#[derive(Debug)]
pub struct Mapped {
    map: Mmap,
    start: u64,
}

impl Mapped {
    /// Maps a range of a file; none if the system does not let us, or cannot say which pages it fails to read (Linux
    /// before 5.14).
    pub(crate) fn new(file: &File, range: Range<u64>) -> Option<Self> {
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        // SAFETY: files of datasets and caches are never written to again, and `copy_to` lets no reference outlive it.
        #[expect(unsafe_code, reason = "another process may write to the file")]
        let map = unsafe { MmapOptions::new().offset(range.start).len(len).map(file) }.ok()?;
        let mapped = Self { map, start: range.start };
        mapped.populate(0, 1).is_ok().then_some(mapped)
    }

    /// Fills `bytes` with those of the file from `offset` on by `copy`, and shows them to `see`, some at a time.
    ///
    /// # Errors
    /// If they are not within the range, or cannot be read.
    pub fn copy_to(
        &self,
        offset: u64,
        bytes: &mut [u8],
        copy: fn(&[u8], &mut [u8]),
        mut see: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let start = offset.checked_sub(self.start).and_then(|start| usize::try_from(start).ok());
        let from = start.and_then(|start| self.map.get(start..)?.get(..bytes.len()));
        let (Some(start), Some(from)) = (start, from) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        self.populate(start, bytes.len())?;
        for (from, to) in from.chunks(PIECE).zip(bytes.chunks_mut(PIECE)) {
            copy(from, to);
            see(from);
        }
        Ok(())
    }

    /// Tells the system that some bytes of the file will be read soon, so that it reads them in one go.
    pub fn will_need(&self, range: Range<u64>) {
        let start = range.start.saturating_sub(self.start) as usize;
        // It is advice: whoever reads is told what is wrong.
        let _ =
            self.map.advise_range(Advice::WillNeed, start, range.end.saturating_sub(range.start) as usize);
    }

    /// Brings pages into memory. Touching one that cannot be read, of a damaged disk or a file that has been cut, would end
    /// the process; here it is an error. Only a file that is cut in the moment between this and the copy still does that.
    #[cfg(target_os = "linux")]
    fn populate(&self, start: usize, len: usize) -> io::Result<()> {
        self.map.advise_range(Advice::PopulateRead, start, len)
    }

    #[cfg(not(target_os = "linux"))]
    fn populate(&self, _: usize, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Copies bytes that this processor will not need soon, between slices of one length.
pub fn copy_past_caches(from: &[u8], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if from.len() >= LARGE {
        return streaming::copy(from, to);
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
mod streaming {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// Registers that make a line of the cache.
    const REGISTERS: usize = 4;

    /// A line of the cache.
    #[repr(align(64))]
    struct Line([__m128i; REGISTERS]);

    #[expect(unsafe_code, reason = "stores past the caches are only there as intrinsics")]
    pub fn copy(from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len());
        // SAFETY: every bit pattern is a line.
        let (head, body, tail) = unsafe { to.align_to_mut::<Line>() };
        let (before, rest) = from.split_at(head.len());
        let (within, after) = rest.split_at(size_of_val(body));
        head.copy_from_slice(before);
        tail.copy_from_slice(after);
        let (lines, _) = within.as_chunks::<{ size_of::<Line>() }>();
        for (line, bytes) in body.iter_mut().zip(lines) {
            for (i, register) in line.0.iter_mut().enumerate() {
                // SAFETY: `bytes` has room for as many registers as `line`, each of which is aligned; SSE2 is part of x86-64.
                unsafe {
                    _mm_stream_si128(register, _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>().add(i)))
                };
            }
        }
        // SAFETY: as above. Whoever the bytes are handed to sees them.
        unsafe { _mm_sfence() };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn copies_are_the_same_wherever_they_begin() {
        let from: Vec<u8> = (0..20_000_u32).map(|i| (i * 31 % 251) as u8).collect();
        for (first, len) in [(0, 20_000), (1, 4096), (7, 4097), (63, 12_345), (3, 100), (5, 0)] {
            for shift in [0, 1, 15, 16] {
                let mut to = vec![0xAA; shift + len + 1];
                copy_past_caches(&from[first..first + len], &mut to[shift..shift + len]);
                assert_eq!(to[shift..shift + len], from[first..first + len]);
                assert!(to[..shift].iter().chain(&to[shift + len..]).all(|byte| *byte == 0xAA));
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_was_cut_is_an_error_and_not_the_end() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i % 253) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let (copy, mapped) = (copy_past_caches, Mapped::new(&file, 5000..100_000).unwrap());

        let (mut to, mut seen) = (vec![0; 90_000], Vec::new());
        mapped.copy_to(6001, &mut to, copy, |piece| seen.extend_from_slice(piece)).unwrap();
        assert!(to == bytes[6001..96_001] && seen == to);
        for outside in [4999, 10_001, u64::MAX] {
            assert!(mapped.copy_to(outside, &mut to, copy, |_| ()).is_err());
        }

        file.set_len(50_000).unwrap();
        assert!(mapped.copy_to(6001, &mut to[..40_000], copy, |_| ()).is_ok());
        assert!(mapped.copy_to(6001, &mut to, copy, |_| ()).is_err());
    }
}
