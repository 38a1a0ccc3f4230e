//! The allocator of tensors on the CPU: mimalloc, which keeps what one step frees for the next
//! step.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use libmimalloc_sys::{mi_free, mi_malloc_aligned, mi_malloc_aligned_at, mi_option_set, mi_usable_size};

use crate::ffi;

/// The alignment of libtorch's own allocator: a cache line, and the widest vector.
const ALIGNMENT: usize = 64;

/// Tensors of this many bytes or more get addresses that differ modulo [`PAGE`].
const LARGE_BYTES: usize = 64 << 10;

/// The smallest page.
const PAGE: usize = 4096;

/// The difference between the addresses of two successive large tensors, modulo [`PAGE`]: an odd
/// number of cache lines, so that all 64 offsets in a page are used in turn.
const STRIDE: usize = 17 * ALIGNMENT;

/// mimalloc's `mi_option_purge_delay` (its `enum mi_option_e`) and the value for "never": free
/// memory never goes back to the system, because the next step needs it again, and that may be
/// minutes away.
const NEVER_PURGE: (i32, i64) = (15, -1);

static INSTALL: Once = Once::new();

/// Makes mimalloc the allocator of this process's tensors on the CPU; tensors that exist stay where
/// they are. Call it before a network is used: what one pass frees is what the next one needs, and
/// glibc would give it back to the system in between, or have threads wait for each other.
pub fn install_cpu_allocator() {
    INSTALL.call_once(|| {
        let (option, never) = NEVER_PURGE;
        // SAFETY: the call takes two numbers.
        unsafe { mi_option_set(option, never) };
        // SAFETY: the functions belong together and exist as long as the process.
        unsafe { ffi::tm_set_cpu_allocator(allocate, mi_free, mi_usable_size) };
    });
}

/// Allocates memory for a tensor; large tensors are shifted against each other.
///
/// By default an allocator begins the largest blocks at multiples of 2 MiB. Arrays that lie at the
/// same offsets of huge pages and are read side by side evict each other from caches, or collide in
/// banks of memory: AdamW took 2.7 times as long. A few cache lines between their beginnings are
/// enough (docs/performance.md).
extern "C" fn allocate(bytes: usize) -> *mut c_void {
    static NEXT_OFFSET: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: the alignments are powers of two; the shim reports a null pointer.
    unsafe {
        if bytes < LARGE_BYTES {
            return mi_malloc_aligned(bytes, ALIGNMENT);
        }
        let offset = NEXT_OFFSET.fetch_add(STRIDE, Ordering::Relaxed) % PAGE;
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
    fn tensors_are_allocated_by_mimalloc_at_different_page_offsets() {
        let ones = |n: i64| Tensor::ones([n], (Kind::Float, Device::Cpu));
        let before = ones(1000);
        install_cpu_allocator();
        install_cpu_allocator();
        for n in [1, 1000, 1 << 24] {
            let after = ones(n);
            // SAFETY: the call only looks the address up.
            assert!(unsafe { mi_is_in_heap_region(after.data_ptr()) });
            assert_eq!(after.data_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(after.sum(Kind::Float).double_value(&[]), n as f64);
        }
        // SAFETY: the call only looks the address up.
        assert!(!unsafe { mi_is_in_heap_region(before.data_ptr()) });
        let large: Vec<_> = (0..64).map(|_| ones(1 << 20)).collect();
        let mut offsets: Vec<_> = large.iter().map(|tensor| tensor.data_ptr() as usize % PAGE).collect();
        offsets.sort_unstable();
        offsets.dedup();
        // Tests on other threads may take some of the offsets.
        assert!(offsets.len() > 32, "{offsets:?}");
        drop(before);
        assert_eq!(ones(0).numel(), 0);
        let error = guard(|| ones(1 << 50)).unwrap_err().to_string();
        assert!(error.contains("not enough memory for a tensor of 4503599627370496 bytes"), "{error}");
    }
}
