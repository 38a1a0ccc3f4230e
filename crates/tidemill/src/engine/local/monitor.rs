//! Checks the stages twice a second: adjusts the number of prepare workers, and shows what each
//! stage does and how busy it is.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use sysinfo::System;

use crate::engine::local::prepare_autoscaler::{PoolLoad, choose_worker_count};
use crate::engine::local::run_state::{RunState, StageMeters};
use crate::engine::preprocess_log::{LOG_INTERVAL, PreprocessLog};
use crate::engine::stage_utilization::{MeterReading, StageUtilization};
use crate::error::Result;

/// Time between two checks. The system updates its CPU usage five times a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Checks between two updates of the progress note.
const CHECKS_PER_NOTE: u32 = 4;

/// Checks between two lines of the log.
const CHECKS_PER_LINE: u32 = (LOG_INTERVAL.as_millis() / CHECK_INTERVAL.as_millis()) as u32;

/// Monitors the run until the sender of `run_end` is dropped.
pub(crate) fn run_monitor(
    state: &RunState<'_>,
    worker_range: &RangeInclusive<usize>,
    log: Option<&PreprocessLog>,
    run_end: &Receiver<()>,
) -> Result<()> {
    let mut cpu = CpuUsage::new();
    let start = || MeterInterval::start(&state.meters);
    let (mut check, mut note, mut line) = (start(), start(), start());
    for checks in 1.. {
        if run_end.recv_timeout(CHECK_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let [_, prepare, ..] = check.next(&state.meters);
        let load = PoolLoad::new(state, worker_range.clone(), prepare.utilization, cpu.idle_cores());
        let target = choose_worker_count(&load);
        if target != state.worker_gate.active_workers() {
            state.meters.prepare.set_threads(target);
            state.worker_gate.set_active_workers(target);
        }
        if checks % CHECKS_PER_NOTE == 0 {
            state.progress.note(note.next(&state.meters).map(|stage| stage.to_string()).join("  "));
        }
        if checks % CHECKS_PER_LINE == 0 {
            write_line(log, &mut line, state);
        }
    }
    write_line(log, &mut line, state);
    Ok(())
}

fn write_line(log: Option<&PreprocessLog>, interval: &mut MeterInterval, state: &RunState<'_>) {
    if let Some(log) = log {
        log.write(&interval.next(&state.meters));
    }
}

/// The readings of all meters at the start of an interval.
struct MeterInterval {
    start: Instant,
    readings: [MeterReading; 4],
}

impl MeterInterval {
    fn start(meters: &StageMeters) -> Self {
        Self { start: Instant::now(), readings: meters.in_order().map(|meter| meter.read()) }
    }

    /// What the stages did in this interval. Starts the next interval.
    fn next(&mut self, meters: &StageMeters) -> [StageUtilization; 4] {
        let ended = std::mem::replace(self, Self::start(meters));
        meters.utilization_since(&ended.readings, ended.start)
    }
}

/// The machine's CPU usage by all processes.
struct CpuUsage(Option<System>);

impl CpuUsage {
    fn new() -> Self {
        // Usage is a difference of two readings; this is the first.
        let mut system = System::new().ok();
        if let Some(system) = &mut system {
            system.refresh_cpu_usage();
        }
        Self(system)
    }

    /// Average number of idle cores since the last call; 0 if the system does not report it.
    fn idle_cores(&mut self) -> f64 {
        let Some(system) = &mut self.0 else { return 0.0 };
        system.refresh_cpu_usage();
        let idle = 1.0 - f64::from(system.global_cpu_usage()) / 100.0;
        idle * system.cpus().len() as f64
    }
}
