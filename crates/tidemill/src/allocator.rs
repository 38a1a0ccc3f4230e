//! How the process's memory allocators are set. Call [`set_up`] before the first thread starts.

use crate::engine::machine_resources::cores;

/// Cores that share an arena where pairs are prepared.
const CORES_PER_ARENA: usize = 4;

/// Arenas per core where a network is trained.
const ARENAS_PER_CORE: usize = 2;

/// libtorch's switch for huge pages.
const HUGE_PAGES: &str = "THP_MEM_ALLOC_ENABLE";

/// Sets both allocators, unless the environment says how. `trains`: whether this process does.
pub fn set_up(trains: bool) {
    keep_few_arenas(if trains { ARENAS_PER_CORE * cores(0) } else { cores(0).div_ceil(CORES_PER_ARENA) });
    use_huge_pages();
}

/// Has libtorch ask for huge pages for tensors of 2 MiB and more on the CPU. What a network computes is memory that was just
/// given back and is touched anew: a page fault for every 4 KiB of it took a fifth of the encoders' time and a seventh of
/// the trainer's. The Python package does the same for processes that are Python's.
#[expect(unsafe_code, reason = "libtorch reads it from the environment")]
fn use_huge_pages() {
    if std::env::var_os(HUGE_PAGES).is_none() {
        // Safe as long as there is no other thread; Python, which may have some, has set it.
        unsafe { std::env::set_var(HUGE_PAGES, "1") };
    }
}

/// Lets glibc keep few arenas. By default it has eight per core, and each keeps what was freed in it: with large images
/// in Parquet that was seen to take as much again as all batches in flight. One arena for two cores was no slower there, and
/// a lower threshold for mapping large buffers on their own, which also helps, cost a fifth of the throughput in page
/// faults. A trainer's forward and backward passes have threads of their own, each with those that help it: with one arena
/// they waited for each other, and a step took a tenth longer. `MALLOC_ARENA_MAX` has the last word.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "only libc knows its allocator")]
fn keep_few_arenas(arenas: usize) {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let arenas = i32::try_from(arenas).unwrap_or(i32::MAX);
        // Safe: it takes two numbers. If it is refused, the allocator stays as it is.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}

/// Other allocators have their own ways.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_few_arenas(_arenas: usize) {}
