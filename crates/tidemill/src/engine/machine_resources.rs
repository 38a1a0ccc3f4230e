//! How much of the machine a run may use: cores and memory.

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};

/// Resolves a number of threads from the run file, where 0 means one per core that this process
/// may use.
pub fn resolve_threads(requested: usize) -> usize {
    match requested {
        0 => tidemill_io::available_cores(),
        n => n,
    }
}

/// Available and total memory, in bytes. If the process runs in a control group with a memory
/// limit (a container, a Slurm job), the limit counts; otherwise the machine's memory. `None` if
/// the system does not report its memory.
pub fn available_and_total_memory() -> Option<(u64, u64)> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    let own = get_current_pid().ok()?;
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, ProcessRefreshKind::nothing());
    let group = system.process(own).and_then(sysinfo::Process::cgroup_limits);
    match group.or_else(|| system.cgroup_limits()) {
        Some(limits) if limits.total_memory > 0 => Some((limits.free_memory, limits.total_memory)),
        _ => Some((system.available_memory(), system.total_memory())),
    }
}

/// Peak resident memory of this process so far, in MiB; 0 if the system does not provide it.
pub fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
