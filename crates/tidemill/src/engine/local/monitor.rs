//! Looks at the stages twice a second: sizes the pool of workers, and tells what each stage does and how busy it is.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use sysinfo::System;

use crate::engine::local::engine::Shared;
use crate::engine::local::worker_pool::{Load, decide};
use crate::engine::stage_utilization::{Reading, Utilisation};
use crate::error::Result;

/// Time between two looks at the pool. The system updates its figures on CPU usage five times a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks between two notes for people.
const LOOKS_PER_NOTE: u32 = 4;

/// Watches until the run is over.
pub(crate) fn watch(shared: &Shared<'_>, range: (usize, usize), over: &Receiver<()>) -> Result<()> {
    let mut cores = Cores::new();
    let (mut look, mut note) = (Window::open(shared), Window::open(shared));
    for looks in 1.. {
        if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let [_, prepare, ..] = look.next(shared);
        let target = decide(&Load::of(shared, range, prepare.utilisation, cores.spare()));
        if target != shared.gate.workers() {
            shared.prepare.resize(target);
            shared.gate.resize(target);
        }
        if looks % LOOKS_PER_NOTE == 0 {
            shared.progress.note(note.next(shared).map(|stage| stage.to_string()).join("  "));
        }
    }
    Ok(())
}

/// The stages from one moment to the next.
struct Window {
    since: Instant,
    before: [Reading; 4],
}

impl Window {
    fn open(shared: &Shared<'_>) -> Self {
        Self { since: Instant::now(), before: shared.meters().map(|meter| meter.read()) }
    }

    /// What the stages did in this window; opens the next one.
    fn next(&mut self, shared: &Shared<'_>) -> [Utilisation; 4] {
        let window = std::mem::replace(self, Self::open(shared));
        shared.utilisation(&window.before, window.since)
    }
}

/// The machine's cores, whoever uses them.
struct Cores(Option<System>);

impl Cores {
    fn new() -> Self {
        // The first reading has nothing to compare with.
        let mut system = System::new().ok();
        if let Some(system) = &mut system {
            system.refresh_cpu_usage();
        }
        Self(system)
    }

    /// Idle cores since the last call; none where the system does not tell.
    fn spare(&mut self) -> f64 {
        let Some(system) = &mut self.0 else { return 0.0 };
        system.refresh_cpu_usage();
        let idle = 1.0 - f64::from(system.global_cpu_usage()) / 100.0;
        idle * system.cpus().len() as f64
    }
}
