//! Lines: numbers over steps, or over anything else. One panel per number, as SVG and as PNG.

use image::RgbImage;

use super::drawing::{Anchor, GRID, INK, Shape, to_pixels, to_svg};

/// A number and what it depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The number's name.
    pub name: String,
    /// What it depends on, such as `step`.
    pub x_name: String,
    /// x and y, in the order of x.
    pub points: Vec<(f64, f64)>,
    /// Values for comparison, each with its name: horizontal lines.
    pub levels: Vec<(String, f64)>,
}

const COLUMNS: usize = 3;
const PANEL: (f32, f32) = (340.0, 220.0);
/// Space around a panel's plot: left, top, right, bottom.
const MARGIN: [f32; 4] = [72.0, 34.0, 18.0, 34.0];
const LINE: [u8; 3] = [31, 119, 180];
const LEVEL: [u8; 3] = [222, 150, 60];

/// The chart as SVG.
pub fn draw_svg(series: &[Series]) -> String {
    to_svg(&shapes(series), size(series))
}

/// The chart as pixels.
pub fn draw_png(series: &[Series]) -> RgbImage {
    to_pixels(&shapes(series), size(series))
}

fn size(series: &[Series]) -> (u32, u32) {
    let (columns, rows) = (series.len().clamp(1, COLUMNS), series.len().div_ceil(COLUMNS).max(1));
    (columns as u32 * PANEL.0 as u32, rows as u32 * PANEL.1 as u32)
}

fn shapes(series: &[Series]) -> Vec<Shape> {
    let corner = |i: usize| ((i % COLUMNS) as f32 * PANEL.0, (i / COLUMNS) as f32 * PANEL.1);
    let all_x = range(series.iter().flat_map(|series| &series.points).map(|point| point.0));
    series.iter().enumerate().flat_map(|(i, series)| panel(series, corner(i), all_x)).collect()
}

/// One panel with its corner at `at`. All panels have the same range of x.
fn panel(series: &Series, at: (f32, f32), x_range: (f64, f64)) -> Vec<Shape> {
    let [left, top, right, bottom] = MARGIN;
    let (x0, x1) = (at.0 + left, at.0 + PANEL.0 - right);
    let (y0, y1) = (at.1 + PANEL.1 - bottom, at.1 + top);
    let levels = series.levels.iter().map(|level| level.1);
    let y_range = range(series.points.iter().map(|point| point.1).chain(levels));
    let place = |value: f64, (low, high): (f64, f64), from: f32, to: f32| {
        from + ((value - low) / (high - low)) as f32 * (to - from)
    };
    let mut shapes =
        vec![Shape::Text { at: (x0, at.1 + 16.0), text: series.name.clone(), anchor: Anchor::Start }];
    for tick in ticks(y_range) {
        let y = place(tick, y_range, y0, y1);
        shapes.push(Shape::Line { points: vec![(x0, y), (x1, y)], colour: GRID, width: 1.0 });
        shapes.push(Shape::Text { at: (x0 - 6.0, y), text: label(tick), anchor: Anchor::End });
    }
    for (step, anchor) in [(x_range.0, Anchor::Start), (x_range.1, Anchor::End)] {
        let x = place(step, x_range, x0, x1);
        shapes.push(Shape::Text { at: (x, y0 + 14.0), text: label(step), anchor });
    }
    shapes.push(Shape::Text {
        at: ((x0 + x1) / 2.0, y0 + 14.0),
        text: series.x_name.clone(),
        anchor: Anchor::Middle,
    });
    shapes.push(Shape::Line { points: vec![(x0, y1), (x0, y0), (x1, y0)], colour: INK, width: 1.0 });
    for (i, (name, value)) in series.levels.iter().enumerate() {
        let y = place(*value, y_range, y0, y1);
        shapes.push(Shape::Line { points: vec![(x0, y), (x1, y)], colour: LEVEL, width: 1.0 });
        // By turns below and above, so that names of near levels do not overlap. Not below the axis.
        let offset = if i % 2 == 0 && y + 16.0 < y0 { 8.0 } else { -8.0 };
        shapes.push(Shape::Text { at: (x1, y + offset), text: name.clone(), anchor: Anchor::End });
    }
    let points: Vec<(f32, f32)> =
        series.points.iter().map(|(x, y)| (place(*x, x_range, x0, x1), place(*y, y_range, y0, y1))).collect();
    shapes.extend(points.iter().map(|point| Shape::Dot { at: *point, colour: LINE }));
    shapes.push(Shape::Line { points, colour: LINE, width: 1.5 });
    shapes
}

/// The smallest and the largest value, a little apart if they are equal.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low < high {
        return (low, high);
    }
    let middle = if low.is_finite() { low } else { 0.0 };
    let gap = if middle == 0.0 { 1.0 } else { middle.abs() * 0.1 };
    (middle - gap, middle + gap)
}

/// Three to six round numbers in a range.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let rough = (high - low) / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// A number with three or four digits.
fn label(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1e6 {
        format!("{value:.1e}")
    } else if magnitude >= 100.0 || value == value.round() {
        format!("{value:.0}")
    } else if magnitude >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}").trim_end_matches('0').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: &[(f64, f64)]) -> Series {
        Series {
            name: "fid <test>".into(),
            x_name: "step".into(),
            points: points.to_vec(),
            levels: Vec::new(),
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        for range in [(0.0, 1.0), (3.2, 3.3), (-5.0, 1200.0), (0.9, 1.1), (1e-5, 2e-5)] {
            let ticks = ticks(range);
            assert!((2..=7).contains(&ticks.len()), "{range:?}: {ticks:?}");
            assert!(ticks.iter().all(|tick| range.0 - 1e-12 <= *tick && *tick <= range.1 + 1e-12));
        }
    }

    #[test]
    fn chart_has_a_panel_per_number_and_its_line() {
        let all = vec![series(&[(400.0, 30.0), (800.0, 20.0)]); 4];
        let image = draw_png(&all);
        assert_eq!(image.dimensions(), (3 * 340, 2 * 220));
        let blue = image.pixels().filter(|pixel| pixel.0[2] > 150 && pixel.0[0] < 100).count();
        assert!(blue > 400, "{blue}");
        let svg = draw_svg(&all);
        assert_eq!((svg.matches("<circle").count(), svg.matches("fid &lt;test>").count()), (8, 4));
    }

    #[test]
    fn levels_are_lines_inside_the_panel() {
        let with_level =
            Series { levels: vec![("offline".into(), 99.0)], ..series(&[(1.0, 3.0), (2.0, 4.0)]) };
        let svg = draw_svg(&[with_level]);
        assert!(svg.contains("offline</text>") && svg.contains(&to_rgb_text(LEVEL)), "{svg}");
        // The level is the largest value, so its line is at the top of the plot.
        assert!(svg.contains("72.0,34.0 322.0,34.0"), "{svg}");
    }

    fn to_rgb_text([r, g, b]: [u8; 3]) -> String {
        format!("rgb({r},{g},{b})")
    }

    #[test]
    fn single_points_and_no_points_are_drawn() {
        for points in [&[(400.0, 3.0)][..], &[(400.0, 0.0)], &[]] {
            assert!(!draw_svg(&[series(points)]).contains("NaN"));
            draw_png(&[series(points)]);
        }
        assert_eq!(draw_png(&[]).dimensions(), (340, 220));
    }
}
