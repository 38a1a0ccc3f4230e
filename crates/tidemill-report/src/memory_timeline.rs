//! Memory over a step, from a Chrome trace of PyTorch's profiler: what tensors take on the GPU, or on
//! the CPU of a run without one.

use crate::report::{Chart, Line, Mark};
use crate::trace::{Clock, MemoryArgs, Trace, TraceEvent};

/// The most points of a line.
const MOST_POINTS: usize = 2000;
const MIB: f64 = (1 << 20) as f64;
/// PyTorch's number for CPUs in the events of memory.
const CPU: i64 = 0;

/// A chart of the last step in a trace, with its phases marked. None if the trace has no memory or no
/// whole step.
pub fn draw_memory(trace: &Trace) -> Option<Chart> {
    let step = trace.last_step(Clock::Host)?;
    let memory = || {
        let of_step = |event: &&TraceEvent| {
            (step.begin..=step.end).contains(&event.ts) && event.args.allocated.is_some()
        };
        trace.events.iter().filter(of_step)
    };
    let is_gpu = memory().any(|event| event.args.device_type != Some(CPU));
    let mut changes: Vec<&TraceEvent> =
        memory().filter(|event| (event.args.device_type != Some(CPU)) == is_gpu).collect();
    changes.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    let line = |name: &str, bytes: fn(&MemoryArgs) -> Option<f64>| {
        let points = changes
            .iter()
            .map(|event| ((event.ts - step.begin) / 1e3, bytes(&event.args).unwrap_or_default() / MIB));
        peaks(name, &points.collect::<Vec<_>>())
    };
    let mut lines = vec![line("tensors", |args| args.allocated)];
    if is_gpu {
        lines.push(line("reserved", |args| args.reserved));
    }
    let marks =
        step.phases.iter().map(|phase| Mark { x: (phase.ts - step.begin) / 1e3, label: phase.name.clone() });
    (!changes.is_empty()).then(|| Chart {
        id: "step-memory".into(),
        group: "Memory and machines".into(),
        title: format!("Memory of {} over one step, MiB", if is_gpu { "the GPU" } else { "tensors" }),
        x_name: "ms".into(),
        marks: marks.collect(),
        lines,
        ..Chart::default()
    })
}

/// A line through the highest of every few points: peaks are what runs out of memory.
fn peaks(name: &str, points: &[(f64, f64)]) -> Line {
    let chunk = points.len().div_ceil(MOST_POINTS).max(1);
    let highest =
        |points: &[(f64, f64)]| points.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
    let (x, y) = points.chunks(chunk).map(highest).unzip();
    Line { name: name.to_owned(), x, y }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::read_trace;

    fn phase(name: &str, ts: f64, dur: f64) -> String {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"{name}\",\"ts\":{ts},\"dur\":{dur},\"args\":{{\"External id\":1}}}}"
        )
    }

    fn memory(ts: f64, device: i64, mib: f64) -> String {
        let bytes = (mib * MIB) as u64;
        format!(
            "{{\"ph\":\"i\",\"name\":\"[memory]\",\"ts\":{ts},\"args\":{{\"Device Type\":{device},\"Total Allocated\":{bytes},\"Total Reserved\":{}}}}}",
            2 * bytes
        )
    }

    fn chart(events: &[String]) -> Option<Chart> {
        let trace = format!("{{\"traceEvents\":[{}]}}", events.join(","));
        draw_memory(&read_trace(trace.as_bytes()).unwrap())
    }

    #[test]
    fn last_step_is_drawn_with_its_phases() {
        let step = |at: f64, mib: f64, device: i64| {
            [
                phase("forward", at, 1000.0),
                memory(at + 500.0, device, mib),
                phase("backward", at + 1000.0, 2000.0),
                memory(at + 2000.0, device, 2.0 * mib),
                phase("optimizer", at + 3000.0, 1000.0),
                memory(at + 3500.0, device, 1.0),
            ]
        };
        let events = [step(0.0, 10.0, 0), step(5000.0, 20.0, 0)].concat();
        let drawn = chart(&events).unwrap();
        assert_eq!(
            (drawn.lines.len(), &drawn.lines[0].x, &drawn.lines[0].y),
            (1, &vec![0.5, 2.0, 3.5], &vec![20.0, 40.0, 1.0])
        );
        let marks: Vec<(f64, &str)> = drawn.marks.iter().map(|mark| (mark.x, mark.label.as_str())).collect();
        assert_eq!(marks, [(0.0, "forward"), (1.0, "backward"), (3.0, "optimizer")]);
        // Where there is a GPU, the host's tensors are left out.
        let on_gpu = phase("optimizer", 4500.0, 10.0).replace("user_annotation", "gpu_user_annotation");
        let with_gpu = [&step(0.0, 10.0, 1)[..], &[memory(700.0, 0, 5.0), on_gpu]].concat();
        let drawn = chart(&with_gpu).unwrap();
        assert_eq!((&drawn.lines[0].y, &drawn.lines[1].y), (&vec![10.0, 20.0, 1.0], &vec![20.0, 40.0, 2.0]));
        assert_eq!(chart(&events[..1]), None, "no whole step");
        assert!(read_trace("{\"traceEvents\": [".as_bytes()).is_err());
    }

    #[test]
    fn long_lines_keep_their_peaks() {
        let points: Vec<(f64, f64)> = (0..9000).map(|i| (f64::from(i), f64::from(i % 10))).collect();
        let line = peaks("tensors", &points);
        assert!(line.x.len() <= MOST_POINTS && line.y.iter().all(|y| *y >= 4.0), "{}", line.x.len());
    }
}
