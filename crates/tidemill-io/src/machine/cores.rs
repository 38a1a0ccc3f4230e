//! The share of the machine's processor cores that this process may use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

static PROCESSES: AtomicUsize = AtomicUsize::new(1);

/// Sets how many processes of this program share the machine, including this one: the ranks of a
/// training run on this machine. From then on each process takes its share of the cores, and of the
/// memory where the run file does not set a size.
pub fn set_processes_on_machine(processes: usize) {
    PROCESSES.store(processes.max(1), Ordering::Relaxed);
}

/// The number of processes of this program that share the machine.
pub fn processes_on_machine() -> usize {
    PROCESSES.load(Ordering::Relaxed)
}

/// The number of threads that this process may keep busy: its share of the cores, at least one.
pub fn available_cores() -> usize {
    let allowed = available_parallelism().map_or(1, usize::from);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let bound_to = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(count_cpus);
    let online = count_cpus(&read("/sys/devices/system/cpu/online"));
    compute_share(allowed, bound_to, online, processes_on_machine())
}

/// The share of one of `processes` processes that together may use `allowed` cores.
///
/// A launcher may bind each process to a part of the machine (`torchrun --numa-binding`,
/// `taskset`). Such a part belongs to the process alone and is not divided again.
fn compute_share(allowed: usize, bound_to: Option<usize>, online: usize, processes: usize) -> usize {
    match bound_to {
        Some(own) if own * processes <= online => allowed.min(own),
        _ => allowed.div_ceil(processes),
    }
}

/// Counts the CPUs in a list in the kernel's format, such as `0-3,8`.
fn count_cpus(list: &str) -> usize {
    let count_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|number| number.trim().parse::<usize>().ok());
        Some((last? + 1).saturating_sub(first?))
    };
    list.split(',').filter_map(count_range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_on_one_machine_share_its_cores() {
        let all = available_cores();
        set_processes_on_machine(2);
        assert!(processes_on_machine() == 2 && (all.div_ceil(2)..=all).contains(&available_cores()));
        set_processes_on_machine(100_000);
        assert_eq!(available_cores(), 1);
        set_processes_on_machine(1);
        assert_eq!(available_cores(), all);
    }

    #[test]
    fn cores_bound_to_one_process_are_not_divided_again() {
        for (allowed, bound_to, online, processes, expected) in [
            (96, Some(96), 96, 8, 12),
            // Each process is bound to its part.
            (12, Some(12), 96, 8, 12),
            // All processes together are bound to half of the machine.
            (48, Some(48), 96, 8, 6),
            // A quota applies to all processes together.
            (16, Some(96), 96, 8, 2),
            (96, Some(96), 96, 1, 96),
            // Systems other than Linux have no such list.
            (10, None, 0, 4, 3),
        ] {
            assert_eq!(
                compute_share(allowed, bound_to, online, processes),
                expected,
                "{bound_to:?} of {allowed}"
            );
        }
    }

    #[test]
    fn cpus_are_counted_in_the_kernels_list_format() {
        for (list, expected) in [("0-3,8\n", 5), ("\t0", 1), ("0-95", 96), ("", 0), ("x", 0)] {
            assert_eq!(count_cpus(list), expected, "{list}");
        }
    }
}
