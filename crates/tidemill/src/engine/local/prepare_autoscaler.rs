//! Autoscaling of the prepare workers: their number follows the encoders' input queue within the
//! range `engine.prepare.workers`.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use crate::engine::local::run_state::RunState;

/// Workers count as busy above this utilization.
const BUSY_UTILIZATION: f64 = 0.8;

/// What the number of workers is chosen from.
#[derive(Debug, Clone)]
pub(crate) struct PoolLoad {
    /// Workers at the moment.
    pub workers: usize,
    /// The allowed numbers of workers.
    pub range: RangeInclusive<usize>,
    /// Encode batches that wait for an encoder.
    pub queued: usize,
    /// Encode batches that may wait at a time.
    pub queue_capacity: usize,
    /// The workers' recent utilization, 0 to 1.
    pub utilization: f64,
    /// Idle cores of the machine.
    pub idle_cores: f64,
}

impl PoolLoad {
    pub fn new(
        state: &RunState<'_>,
        range: RangeInclusive<usize>,
        utilization: f64,
        idle_cores: f64,
    ) -> Self {
        Self {
            workers: state.worker_gate.active_workers(),
            range,
            queued: state.encode_queue.waiting.load(Ordering::Relaxed),
            queue_capacity: state.encode_queue.capacity,
            utilization,
            idle_cores,
        }
    }
}

/// The number of workers from now on: one more if the queue is empty while all workers are busy and
/// a core is idle; one less if the queue is full.
pub(crate) fn choose_worker_count(load: &PoolLoad) -> usize {
    let is_starving = load.queued == 0 && load.utilization > BUSY_UTILIZATION && load.idle_cores >= 1.0;
    let target = match load.workers {
        n if is_starving => n + 1,
        n if load.queued >= load.queue_capacity => n.saturating_sub(1),
        n => n,
    };
    target.clamp(*load.range.start(), *load.range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_count_follows_the_encode_queue() {
        let base = PoolLoad {
            workers: 4,
            range: 2..=8,
            queued: 1,
            queue_capacity: 2,
            utilization: 1.0,
            idle_cores: 3.0,
        };
        let empty = PoolLoad { queued: 0, ..base.clone() };
        let full = PoolLoad { queued: 2, ..base.clone() };
        for (case, load, expected) in [
            ("neither empty nor full", base, 4),
            ("empty, cores are idle", empty.clone(), 5),
            ("empty, no core is idle", PoolLoad { idle_cores: 0.4, ..empty.clone() }, 4),
            ("empty because the source is slow", PoolLoad { utilization: 0.3, ..empty.clone() }, 4),
            ("empty at the maximum", PoolLoad { workers: 8, ..empty.clone() }, 8),
            ("full", full.clone(), 3),
            ("full at the minimum", PoolLoad { workers: 2, ..full.clone() }, 2),
            ("a fixed size, empty", PoolLoad { range: 4..=4, ..empty }, 4),
            ("a fixed size, full", PoolLoad { range: 4..=4, ..full }, 4),
        ] {
            assert_eq!(choose_worker_count(&load), expected, "{case}");
        }
    }
}
