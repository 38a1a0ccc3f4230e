//! What computes and communicates at which time of a step.

use tidemill_report::step_timeline::{Span, StepTimeline};

use super::drawing::{Anchor, GRID, INK, Shape, to_svg};

const WIDTH: f32 = 900.0;
/// Where the lanes begin: their names are left of it.
const LEFT: f32 = 120.0;
const RIGHT: f32 = 20.0;
const TOP: f32 = 16.0;
const LANE: f32 = 30.0;
const BAR: f32 = 18.0;
/// Marks on the axis, besides its start.
const TICKS: usize = 5;
/// Of forward, backward and optimizer.
const PHASE_COLOURS: [[u8; 3]; 3] = [[116, 192, 252], [177, 151, 252], [255, 212, 59]];
/// Of computation, communication and copies.
const LANE_COLOURS: [(&str, [u8; 3]); 3] =
    [("computation", [11, 114, 133]), ("communication", [232, 89, 12]), ("copies", [43, 138, 62])];

/// Draws a step as SVG: its phases, and below them a lane for each kind of work.
pub fn draw_timeline(timeline: &StepTimeline) -> String {
    let bottom = TOP + LANE * (1 + timeline.lanes.len()) as f32;
    let x = |ms: f64| LEFT + (WIDTH - LEFT - RIGHT) * (ms / timeline.ms.max(1e-9)) as f32;
    let bar = |lane: usize, (start, end): Span, colour| Shape::Bar {
        at: (x(start), TOP + LANE * lane as f32),
        // At least as wide as can be seen.
        size: ((x(end) - x(start)).max(0.5), BAR),
        colour,
    };
    let text = |at, text: String, anchor| Shape::Text { at, text, anchor };
    let name = |lane: usize, name: &str| {
        text((LEFT - 8.0, TOP + LANE * lane as f32 + BAR / 2.0), name.to_owned(), Anchor::End)
    };
    let mut shapes = Vec::new();
    for tick in 0..=TICKS {
        let ms = timeline.ms * tick as f64 / TICKS as f64;
        shapes.push(Shape::Line { points: vec![(x(ms), TOP), (x(ms), bottom)], colour: GRID, width: 1.0 });
        let (label, anchor) = match tick {
            TICKS => (format!("{ms:.1} ms"), Anchor::End),
            _ => (format!("{ms:.1}"), Anchor::Middle),
        };
        shapes.push(text((x(ms), bottom + 10.0), label, anchor));
    }
    shapes.push(Shape::Line {
        points: vec![(LEFT, bottom), (WIDTH - RIGHT, bottom)],
        colour: INK,
        width: 1.0,
    });
    shapes.push(name(0, "phase"));
    for (phase, span) in &timeline.phases {
        let index = ["forward", "backward", "optimizer"].iter().position(|one| one == phase).unwrap_or(0);
        shapes.push(bar(0, *span, PHASE_COLOURS[index]));
        let width = x(span.1) - x(span.0);
        if width > 8.0 * phase.len() as f32 {
            shapes.push(text((x(span.0) + width / 2.0, TOP + BAR / 2.0), phase.clone(), Anchor::Middle));
        }
    }
    for (lane, (kind, spans)) in timeline.lanes.iter().enumerate() {
        shapes.push(name(lane + 1, kind));
        let colour = LANE_COLOURS.iter().find(|(name, _)| name == kind).map_or(INK, |(_, colour)| *colour);
        shapes.extend(spans.iter().map(|span| bar(lane + 1, *span, colour)));
    }
    to_svg(&shapes, (WIDTH as u32, bottom as u32 + 24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_span_has_a_bar_inside_the_chart() {
        let timeline = StepTimeline {
            ms: 100.0,
            phases: vec![("forward".into(), (0.0, 40.0)), ("backward".into(), (40.0, 90.0))],
            lanes: vec![("communication".into(), vec![(50.0, 60.0), (99.0, 100.0)])],
            communication: Some((11.0, 1.0)),
        };
        let svg = draw_timeline(&timeline);
        assert_eq!(svg.matches("<rect x=").count(), 4, "{svg}");
        for text in ["phase", "forward", "backward", "communication", "100.0 ms"] {
            assert!(svg.contains(&format!(">{text}</text>")), "{text} in {svg}");
        }
        let x_and_width = |bar: &str| {
            let number = |name: &str| {
                let rest = bar.split(&format!("{name}=\"")).nth(1).unwrap();
                rest.split('"').next().unwrap().parse::<f32>().unwrap()
            };
            number("x") + number("width")
        };
        let ends: Vec<f32> =
            svg.lines().filter(|line| line.starts_with("<rect x=")).map(x_and_width).collect();
        assert!(ends.iter().all(|end| *end <= WIDTH - RIGHT + 0.5), "{ends:?}");
    }
}
