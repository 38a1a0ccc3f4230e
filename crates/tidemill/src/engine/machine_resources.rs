//! What of the machine a run may use.

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};

/// A number of threads from the run file, where 0 means one per core, of those that are this process's.
pub fn cores(wanted: usize) -> usize {
    match wanted {
        0 => tidemill_io::cores(),
        n => n,
    }
}

/// Memory available and in total, in bytes: the machine's, or what the process's control group (a container, a Slurm job) is given;
/// none where the system does not tell.
pub fn memory() -> Option<(u64, u64)> {
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
