//! Chrome traces, as PyTorch's profiler writes them: what charts of a step need of them.

use std::io::BufRead;

use serde::Deserialize;

/// The ranges of a step that the trainer names, in order.
const PHASES: [&str; 3] = ["forward", "backward", "optimizer"];

/// A trace.
#[derive(Debug, Deserialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    pub(crate) events: Vec<TraceEvent>,
}

/// What is read of an event. Times are in microseconds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TraceEvent {
    pub name: String,
    #[serde(rename = "cat")]
    pub category: String,
    pub ts: f64,
    pub dur: f64,
    pub args: MemoryArgs,
}

/// The arguments of an event of memory. Other events have others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MemoryArgs {
    #[serde(rename = "Device Type")]
    pub device_type: Option<i64>,
    #[serde(rename = "Total Allocated")]
    pub allocated: Option<f64>,
    #[serde(rename = "Total Reserved")]
    pub reserved: Option<f64>,
}

/// Whose times a step has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// When the host came to a phase.
    Host,
    /// When the GPU came to it.
    Gpu,
}

/// A step of a trace.
pub(crate) struct Step<'a> {
    /// Forward and backward of each micro-batch, and the optimizer.
    pub phases: Vec<&'a TraceEvent>,
    /// When the first phase begins, in microseconds.
    pub begin: f64,
    /// When the last phase ends.
    pub end: f64,
}

/// Reads a trace.
///
/// # Errors
/// If it is no trace.
pub fn read_trace(trace: impl BufRead) -> serde_json::Result<Trace> {
    serde_json::from_reader(trace)
}

impl Trace {
    /// The last step; none if no step is whole.
    pub(crate) fn last_step(&self, clock: Clock) -> Option<Step<'_>> {
        let category = match clock {
            Clock::Host => "user_annotation",
            Clock::Gpu => "gpu_user_annotation",
        };
        let is_phase =
            |event: &&TraceEvent| event.category == category && PHASES.contains(&event.name.as_str());
        let mut phases: Vec<&TraceEvent> = self.events.iter().filter(is_phase).collect();
        phases.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        // A step has a forward and a backward pass of each micro-batch, and ends with the optimizer.
        let last = phases.iter().rposition(|phase| phase.name == PHASES[2])?;
        let first = phases[..last].iter().rposition(|phase| phase.name == PHASES[2]).map_or(0, |i| i + 1);
        let phases = phases[first..=last].to_vec();
        let (begin, end) = (phases.first()?.ts, phases.last()?.ts + phases.last()?.dur);
        Some(Step { phases, begin, end })
    }
}
