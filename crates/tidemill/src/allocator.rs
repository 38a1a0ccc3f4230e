//! Settings of the process's memory allocators. Call [`configure_allocators`] before the first
//! thread starts.

use crate::engine::machine_resources::resolve_threads;

/// Cores that share an arena in a process that prepares and encodes pairs.
const CORES_PER_ARENA: usize = 4;

/// Arenas per core in a process that trains.
const ARENAS_PER_CORE: usize = 2;

/// libtorch's environment variable for huge pages.
const HUGE_PAGES_VARIABLE: &str = "THP_MEM_ALLOC_ENABLE";

/// Configures the allocators of glibc and libtorch, unless the environment does. `is_training` is
/// whether this process trains.
pub fn configure_allocators(is_training: bool) {
    let cores = resolve_threads(0);
    limit_arenas(if is_training { ARENAS_PER_CORE * cores } else { cores.div_ceil(CORES_PER_ARENA) });
    enable_huge_pages();
}

/// Makes libtorch ask for huge pages for CPU tensors of 2 MiB and more. Activations live in memory
/// that was just freed and is touched anew: a page fault for every 4 KiB of it took a fifth of the
/// encoders' time and a seventh of the trainer's. The Python package sets the same variable for
/// Python processes.
#[expect(unsafe_code, reason = "libtorch reads it from the environment")]
fn enable_huge_pages() {
    if std::env::var_os(HUGE_PAGES_VARIABLE).is_none() {
        // SAFETY: there is no other thread. In a Python process, which may have threads, the Python
        // package has set the variable already.
        unsafe { std::env::set_var(HUGE_PAGES_VARIABLE, "1") };
    }
}

/// Limits the arenas of glibc's allocator, unless `MALLOC_ARENA_MAX` is set. By default there are
/// eight per core, and each keeps what was freed in it. With large images in Parquet, they took as
/// much memory again as all batches in flight.
///
/// Measured: one arena for two cores was no slower for preprocessing. A lower threshold for mapping
/// large buffers on their own also saves memory, but cost a fifth of the throughput in page faults.
/// In a trainer, forward and backward passes have threads of their own, each with helper threads:
/// with one arena they waited for each other, and a step took a tenth longer.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "mallopt is a C function")]
fn limit_arenas(arenas: usize) {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let arenas = i32::try_from(arenas).unwrap_or(i32::MAX);
        // SAFETY: it takes two numbers. If it fails, the allocator stays as it is.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}

/// Does nothing: other allocators have no arenas to limit.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn limit_arenas(_arenas: usize) {}
