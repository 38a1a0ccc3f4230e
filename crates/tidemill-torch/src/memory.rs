//! Where the memory of tensors on the CPU comes from: mimalloc, which keeps what a step frees for the next one.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use libmimalloc_sys::{mi_free, mi_malloc_aligned, mi_malloc_aligned_at, mi_option_set};

use crate::ffi;

/// As libtorch's own: a cache line, and the widest vector.
const ALIGNMENT: usize = 64;

/// Bytes from which on tensors have addresses that differ modulo [`PAGE`].
const LARGE: usize = 64 << 10;

/// The smallest page.
const PAGE: usize = 4096;

/// What the addresses of two large tensors that are asked for one after the other differ by, modulo [`PAGE`]: cache lines, and
/// as many of them that all 64 offsets have their turn.
const STRIDE: usize = 17 * ALIGNMENT;

/// mimalloc's `mi_option_purge_delay` (its `enum mi_option_e`): what is free never goes back to the system, for the next step
/// wants it again, and that may be minutes away.
const PURGE_DELAY: (i32, i64) = (15, -1);

static ONCE: Once = Once::new();

/// Has this process's tensors on the CPU come from mimalloc from now on; those that are there stay as they are. Call it
/// before a network is used much: what its passes free is what they need again, and glibc gives it back to the system in
/// between, or has threads wait for each other.
pub fn install_cpu_allocator() {
    ONCE.call_once(|| {
        let (option, never) = PURGE_DELAY;
        // SAFETY: it takes two numbers.
        unsafe { mi_option_set(option, never) };
        // SAFETY: the two functions are there for as long as the process, and belong together.
        unsafe { ffi::tm_set_cpu_allocator(allocate, mi_free) };
    });
}

/// An allocator left to itself begins the largest blocks at multiples of 2 MiB. Arrays that lie at the same places of huge pages
/// and are gone through side by side get in each other's way, in caches or in banks of memory: AdamW took 2.7 times as
/// long. A few cache lines between their beginnings are enough (docs/performance.md).
extern "C" fn allocate(bytes: usize) -> *mut c_void {
    static LARGE_ONES: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: the alignments are powers of two; a null pointer is the shim's to report.
    unsafe {
        if bytes < LARGE {
            return mi_malloc_aligned(bytes, ALIGNMENT);
        }
        let offset = LARGE_ONES.fetch_add(STRIDE, Ordering::Relaxed) % PAGE;
        mi_malloc_aligned_at(bytes, PAGE, offset)
    }
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_is_in_heap_region;
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::guard;

    #[test]
    fn tensors_are_mimallocs() {
        let ones = |n: i64| Tensor::ones([n], (Kind::Float, Device::Cpu));
        let before = ones(1000);
        install_cpu_allocator();
        install_cpu_allocator();
        for n in [1, 1000, 1 << 24] {
            let after = ones(n);
            // SAFETY: it only asks whose the address is.
            assert!(unsafe { mi_is_in_heap_region(after.data_ptr()) });
            assert_eq!(after.data_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(after.sum(Kind::Float).double_value(&[]), n as f64);
        }
        // SAFETY: as above.
        assert!(!unsafe { mi_is_in_heap_region(before.data_ptr()) });
        let large: Vec<_> = (0..64).map(|_| ones(1 << 20)).collect();
        let mut offsets: Vec<_> = large.iter().map(|tensor| tensor.data_ptr() as usize % PAGE).collect();
        offsets.sort_unstable();
        offsets.dedup();
        // Other threads may take turns of theirs.
        assert!(offsets.len() > 32, "{offsets:?}");
        drop(before);
        assert_eq!(ones(0).numel(), 0);
        let error = guard(|| ones(1 << 50)).unwrap_err().to_string();
        assert!(error.contains("not enough memory for a tensor of 4503599627370496 bytes"), "{error}");
    }
}
