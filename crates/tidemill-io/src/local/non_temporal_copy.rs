//! Copies that bypass the processor's caches.

/// Shorter copies use ordinary stores.
#[cfg(target_arch = "x86_64")]
const MIN_BYTES: usize = 4 << 10;

/// Copies bytes that this processor will not need soon. Both slices must have the same length.
pub fn copy_non_temporal(from: &[u8], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if from.len() >= MIN_BYTES {
        return sse2::copy(from, to);
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// SSE registers per cache line.
    const REGISTERS: usize = 4;

    /// One cache line.
    #[repr(align(64))]
    struct Line([__m128i; REGISTERS]);

    #[expect(unsafe_code, reason = "non-temporal stores are only available as intrinsics")]
    pub fn copy(from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len());
        // SAFETY: every bit pattern is a valid `Line`.
        let (head, body, tail) = unsafe { to.align_to_mut::<Line>() };
        let (from_head, rest) = from.split_at(head.len());
        let (from_body, from_tail) = rest.split_at(size_of_val(body));
        head.copy_from_slice(from_head);
        tail.copy_from_slice(from_tail);
        let (from_lines, _) = from_body.as_chunks::<{ size_of::<Line>() }>();
        for (line, bytes) in body.iter_mut().zip(from_lines) {
            for (i, register) in line.0.iter_mut().enumerate() {
                // SAFETY: `bytes` has as many registers as `line`, and those of `line` are aligned.
                // SSE2 is part of x86-64.
                unsafe {
                    _mm_stream_si128(register, _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>().add(i)))
                };
            }
        }
        // SAFETY: SSE is part of x86-64. The fence makes the stores visible to the thread that gets
        // the bytes next.
        unsafe { _mm_sfence() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_equal_at_every_alignment() {
        let from: Vec<u8> = (0..20_000_u32).map(|i| (i * 31 % 251) as u8).collect();
        for (first, len) in [(0, 20_000), (1, 4096), (7, 4097), (63, 12_345), (3, 100), (5, 0)] {
            for shift in [0, 1, 15, 16] {
                let mut to = vec![0xAA; shift + len + 1];
                copy_non_temporal(&from[first..first + len], &mut to[shift..shift + len]);
                assert_eq!(to[shift..shift + len], from[first..first + len]);
                assert!(to[..shift].iter().chain(&to[shift + len..]).all(|byte| *byte == 0xAA));
            }
        }
    }
}
