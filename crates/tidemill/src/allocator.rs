//! How the process's memory allocator is set.

use crate::engine::device::cores;

/// Cores that share an arena.
const CORES_PER_ARENA: usize = 4;

/// Lets glibc keep few arenas. By default it has eight per core, and each keeps what was freed in it: with large images
/// in Parquet that was seen to take as much again as all batches in flight. One arena for two cores was no slower, and
/// a lower threshold for mapping large buffers on their own, which also helps, cost a fifth of the throughput in page
/// faults. Call it before the first thread starts; `MALLOC_ARENA_MAX` has the last word.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "only libc knows its allocator")]
pub fn keep_few_arenas() {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let arenas = i32::try_from(cores(0).div_ceil(CORES_PER_ARENA)).unwrap_or(i32::MAX);
        // Safe: it takes two numbers. If it is refused, the allocator stays as it is.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}

/// Other allocators have their own ways.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_few_arenas() {}
