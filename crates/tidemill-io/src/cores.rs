//! What of a machine's cores is this process's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

static PROCESSES: AtomicUsize = AtomicUsize::new(1);

/// Says how many processes share this machine, this one among them, as ranks of a training run do: from here on each takes its part
/// of the cores, and of memory, where the run file leaves that to it.
pub fn share_machine(processes: usize) {
    PROCESSES.store(processes.max(1), Ordering::Relaxed);
}

/// How many processes share this machine.
pub fn processes() -> usize {
    PROCESSES.load(Ordering::Relaxed)
}

/// Threads that this process may keep busy: its part of the cores, and at least one.
pub fn cores() -> usize {
    let allowed = available_parallelism().map_or(1, usize::from);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let bound_to = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(count);
    part(allowed, bound_to, count(&read("/sys/devices/system/cpu/online")), processes())
}

/// The part of one of some processes that may use so many cores. One that whoever started it has bound to a part of the machine
/// (`torchrun --numa-binding`, `taskset`) has that for itself.
fn part(allowed: usize, bound_to: Option<usize>, machine: usize, processes: usize) -> usize {
    match bound_to {
        Some(own) if own * processes <= machine => allowed.min(own),
        _ => allowed.div_ceil(processes),
    }
}

/// How many numbers are in a list as the kernel writes it: `0-3,8`.
fn count(list: &str) -> usize {
    let of = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|number| number.trim().parse::<usize>().ok());
        Some((last? + 1).saturating_sub(first?))
    };
    list.split(',').filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_processes_have_parts() {
        let all = cores();
        share_machine(2);
        assert!(processes() == 2 && (all.div_ceil(2)..=all).contains(&cores()));
        share_machine(100_000);
        assert_eq!(cores(), 1);
        share_machine(1);
        assert_eq!(cores(), all);
    }

    #[test]
    fn what_a_process_is_bound_to_is_not_divided_again() {
        for (allowed, bound_to, machine, processes, expected) in [
            (96, Some(96), 96, 8, 12),
            // Bound to a part each; half of the machine together; a quota of all.
            (12, Some(12), 96, 8, 12),
            (48, Some(48), 96, 8, 6),
            (16, Some(96), 96, 8, 2),
            (96, Some(96), 96, 1, 96),
            // No Linux.
            (10, None, 0, 4, 3),
        ] {
            assert_eq!(part(allowed, bound_to, machine, processes), expected, "{bound_to:?} of {allowed}");
        }
    }

    #[test]
    fn cores_are_counted_as_the_kernel_lists_them() {
        for (list, expected) in [("0-3,8\n", 5), ("\t0", 1), ("0-95", 96), ("", 0), ("x", 0)] {
            assert_eq!(count(list), expected, "{list}");
        }
    }
}
