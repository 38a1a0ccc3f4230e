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

/// Threads that this process may keep busy: its part of the cores that it may run on, and at least one.
pub fn cores() -> usize {
    available_parallelism().map_or(1, usize::from).div_ceil(processes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_processes_have_parts() {
        let all = cores();
        share_machine(2);
        assert_eq!((processes(), cores()), (2, all.div_ceil(2)));
        share_machine(100_000);
        assert_eq!(cores(), 1);
        share_machine(1);
        assert_eq!(cores(), all);
    }
}
