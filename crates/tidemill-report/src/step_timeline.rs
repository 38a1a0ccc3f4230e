//! What computes and communicates at which time of a step, from a Chrome trace of PyTorch's profiler.

use crate::trace::{Clock, Trace, TraceEvent};

/// Spans nearer to each other than this share of a step are drawn as one.
const SMALLEST_GAP: f64 = 1.0 / 2000.0;

/// A step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimeline {
    /// How long it took, in ms.
    pub ms: f64,
    /// Forward, backward and optimizer: names, and from when to when in ms.
    pub phases: Vec<(String, Span)>,
    /// What runs at the same time: names, and spans in order.
    pub lanes: Vec<(String, Vec<Span>)>,
    /// Communication in ms, and how much of it came while nothing was computed; none without communication.
    pub communication: Option<(f64, f64)>,
}

/// From when to when, in ms since the step began.
pub type Span = (f64, f64);

/// What a device does in an event.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Computation,
    Communication,
    Copies,
}

/// The last step of a trace; none if the trace has no whole step, or no work in it. On a GPU its kernels are shown,
/// and otherwise libtorch's operations and Gloo's collectives.
pub fn read_timeline(trace: &Trace) -> Option<StepTimeline> {
    let on_gpu = trace.last_step(Clock::Gpu);
    let work = if on_gpu.is_some() { work_on_gpu } else { work_on_cpu };
    let step = on_gpu.or_else(|| trace.last_step(Clock::Host))?;
    let to_ms = |us: f64| (us.clamp(step.begin, step.end) - step.begin) / 1e3;
    let span = |event: &TraceEvent| (to_ms(event.ts), to_ms(event.ts + event.dur));
    let spans = |kind: Work| {
        let of_kind = trace.events.iter().filter(|event| work(event) == Some(kind));
        unite(of_kind.map(span).filter(|(start, end)| start < end).collect())
    };
    let (computation, communication) = (spans(Work::Computation), spans(Work::Communication));
    let exposed = total(&communication) - overlap(&communication, &computation);
    let communication_ms = (!communication.is_empty()).then(|| (total(&communication), exposed));
    let ms = to_ms(step.end);
    let lanes =
        [("computation", computation), ("communication", communication), ("copies", spans(Work::Copies))];
    let lanes = lanes.into_iter().filter(|(_, spans)| !spans.is_empty());
    let lanes: Vec<_> =
        lanes.map(|(name, spans)| (name.to_owned(), join_near(spans, ms * SMALLEST_GAP))).collect();
    (!lanes.is_empty()).then(|| StepTimeline {
        ms,
        phases: step.phases.iter().map(|phase| (phase.name.clone(), span(phase))).collect(),
        lanes,
        communication: communication_ms,
    })
}

fn work_on_gpu(event: &TraceEvent) -> Option<Work> {
    match event.category.as_str() {
        "kernel" if event.name.starts_with("nccl") => Some(Work::Communication),
        "kernel" => Some(Work::Computation),
        "gpu_memcpy" | "gpu_memset" => Some(Work::Copies),
        _ => None,
    }
}

fn work_on_cpu(event: &TraceEvent) -> Option<Work> {
    if event.name.starts_with("gloo:") {
        return Some(Work::Communication);
    }
    (event.category == "cpu_op" && event.name.starts_with("aten::")).then_some(Work::Computation)
}

/// The times that are in any span, as spans in order that do not touch.
fn unite(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    join_near(spans, 0.0)
}

/// Joins spans in order between which there is at most a gap.
fn join_near(spans: Vec<Span>, gap: f64) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for (start, end) in spans {
        match joined.last_mut() {
            Some(last) if start <= last.1 + gap => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

fn total(spans: &[Span]) -> f64 {
    spans.iter().map(|(start, end)| end - start).sum()
}

/// How long both are at work. Spans of each are in order, and do not touch.
fn overlap(some: &[Span], others: &[Span]) -> f64 {
    let (mut i, mut j, mut sum) = (0, 0, 0.0);
    while let (Some(one), Some(other)) = (some.get(i), others.get(j)) {
        sum += (one.1.min(other.1) - one.0.max(other.0)).max(0.0);
        if one.1 < other.1 { i += 1 } else { j += 1 }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::read_trace;

    fn event(category: &str, name: &str, ts: f64, dur: f64) -> String {
        format!("{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"ts\":{ts},\"dur\":{dur}}}")
    }

    fn timeline(events: &[String]) -> Option<StepTimeline> {
        read_timeline(&read_trace(format!("{{\"traceEvents\":[{}]}}", events.join(",")).as_bytes()).unwrap())
    }

    fn phases(category: &str, at: f64) -> [String; 3] {
        [("forward", 0.0, 1000.0), ("backward", 1000.0, 2000.0), ("optimizer", 3000.0, 1000.0)]
            .map(|(name, start, dur)| event(category, name, at + start, dur))
    }

    #[test]
    fn communication_that_nothing_hides_is_counted() {
        let work = [
            event("cpu_op", "aten::conv2d", 100.0, 1900.0),
            event("cpu_op", "aten::convolution", 200.0, 1000.0),
            event("cpu_op", "autograd::engine", 0.0, 4000.0),
            event("user_annotation", "gloo:reduce_scatter", 1500.0, 1000.0),
            event("cpu_op", "aten::add", 3000.0, 900.0),
        ];
        let found = timeline(&[&phases("user_annotation", 0.0)[..], &work].concat()).unwrap();
        assert_eq!(found.ms, 4.0);
        assert_eq!(found.phases[1], ("backward".into(), (1.0, 3.0)));
        let expected = [
            ("computation".to_owned(), vec![(0.1, 2.0), (3.0, 3.9)]),
            ("communication".to_owned(), vec![(1.5, 2.5)]),
        ];
        assert_eq!(found.lanes, expected);
        assert_eq!(found.communication, Some((1.0, 0.5)));
        assert_eq!(timeline(&phases("user_annotation", 0.0)), None);
    }

    #[test]
    fn a_gpu_shows_its_kernels_of_the_last_step() {
        let work = [
            event("cpu_op", "aten::conv2d", 5000.0, 100.0),
            event("kernel", "sm90_xmma", 4000.0, 1500.0),
            event("kernel", "sm90_xmma", 5500.0, 1000.0),
            event("kernel", "ncclDevKernel_ReduceScatter", 6000.0, 1000.0),
            event("gpu_memcpy", "Memcpy HtoD", 8900.0, 400.0),
        ];
        // The host was there before.
        let steps = [phases("user_annotation", 1000.0), phases("gpu_user_annotation", 5000.0)].concat();
        let found = timeline(&[&steps[..], &work].concat()).unwrap();
        assert_eq!((found.ms, found.phases[0].1), (4.0, (0.0, 1.0)));
        let names: Vec<&str> = found.lanes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["computation", "communication", "copies"]);
        assert_eq!(found.lanes[0].1, [(0.0, 1.5)]);
        assert_eq!(found.lanes[2].1, [(3.9, 4.0)]);
        assert_eq!(found.communication, Some((1.0, 0.5)));
    }

    #[test]
    fn near_spans_are_drawn_as_one() {
        assert_eq!(join_near(vec![(0.0, 1.0), (1.05, 2.0), (3.0, 4.0)], 0.1), [(0.0, 2.0), (3.0, 4.0)]);
        assert_eq!(unite(vec![(2.0, 3.0), (0.0, 1.0), (0.5, 2.5)]), [(0.0, 3.0)]);
    }
}
