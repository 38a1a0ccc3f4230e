//! Which model people prefer: a panel per question, a bar per model, intervals of 95 %.

use image::RgbImage;

use super::drawing::{Anchor, GLYPH, GRID, INK, Shape, to_pixels, to_svg};

/// A question's panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// The panel's title.
    pub title: String,
    /// A line below the title.
    pub subtitle: String,
    /// A bar for each model.
    pub bars: Vec<Bar>,
}

/// A model's bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// The model.
    pub label: String,
    /// The bar's height.
    pub value: f64,
    /// The interval.
    pub interval: (f64, f64),
}

const PANEL: (f32, f32) = (360.0, 320.0);
/// Space around a panel's plot: left, top, right, bottom.
const MARGIN: [f32; 4] = [64.0, 56.0, 16.0, 40.0];
/// Colours of the bars, told apart by people who cannot tell red from green.
const COLOURS: [[u8; 3]; 4] = [[86, 140, 190], [222, 150, 60], [110, 110, 110], [90, 160, 120]];

/// The panels as SVG.
pub fn draw_svg(panels: &[Panel]) -> String {
    to_svg(&shapes(panels), size(panels))
}

/// The panels as pixels.
pub fn draw_png(panels: &[Panel]) -> RgbImage {
    to_pixels(&shapes(panels), size(panels))
}

fn size(panels: &[Panel]) -> (u32, u32) {
    (PANEL.0 as u32 * panels.len().max(1) as u32, PANEL.1 as u32)
}

fn shapes(panels: &[Panel]) -> Vec<Shape> {
    panels.iter().enumerate().flat_map(|(i, panel)| draw_panel(panel, i as f32 * PANEL.0)).collect()
}

fn draw_panel(panel: &Panel, corner: f32) -> Vec<Shape> {
    let [left, top, right, bottom] = MARGIN;
    let (x0, x1) = (corner + left, corner + PANEL.0 - right);
    let (y0, y1) = (PANEL.1 - bottom, top);
    let (low, high) = range(panel);
    let place = |value: f64| y0 + ((value.clamp(low, high) - low) / (high - low)) as f32 * (y1 - y0);
    let text = |at, text: &str, anchor| Shape::Text { at, text: text.into(), anchor };
    let mut shapes =
        vec![text((x0, 16.0), &panel.title, Anchor::Start), text((x0, 34.0), &panel.subtitle, Anchor::Start)];
    for i in 0..=4 {
        let value = low + (high - low) * f64::from(i) / 4.0;
        let y = place(value);
        shapes.push(Shape::Line { points: vec![(x0, y), (x1, y)], colour: GRID, width: 1.0 });
        let label = if is_share(panel) { format!("{:.0}%", 100.0 * value) } else { format!("{value:.1}") };
        shapes.push(text((x0 - 6.0, y), &label, Anchor::End));
    }
    let width = (x1 - x0) / panel.bars.len().max(1) as f32;
    for (i, bar) in panel.bars.iter().enumerate() {
        let middle = x0 + (i as f32 + 0.5) * width;
        let (base, tip) = (place(0.0), place(bar.value));
        shapes.push(Shape::Bar {
            at: (middle - 0.3 * width, base.min(tip)),
            size: (0.6 * width, (base - tip).abs().max(1.0)),
            colour: COLOURS[i % COLOURS.len()],
        });
        let (bottom, top) = (place(bar.interval.0), place(bar.interval.1));
        for points in [
            vec![(middle, bottom), (middle, top)],
            vec![(middle - 6.0, bottom), (middle + 6.0, bottom)],
            vec![(middle - 6.0, top), (middle + 6.0, top)],
        ] {
            shapes.push(Shape::Line { points, colour: INK, width: 1.5 });
        }
        let label: String = bar.label.chars().take((width / GLYPH) as usize).collect();
        shapes.push(text((middle, y0 + 16.0), &label, Anchor::Middle));
    }
    shapes.push(Shape::Line { points: vec![(x0, y1), (x0, y0), (x1, y0)], colour: INK, width: 1.0 });
    shapes
}

/// Whether the bars are shares, from 0 to 1.
fn is_share(panel: &Panel) -> bool {
    panel.bars.iter().all(|bar| bar.interval.0 >= 0.0 && bar.interval.1 <= 1.0)
}

/// The values that a panel shows: 0 to 1 for shares, else what the intervals reach on either side.
fn range(panel: &Panel) -> (f64, f64) {
    if is_share(panel) {
        return (0.0, 1.0);
    }
    let reach =
        panel.bars.iter().map(|bar| bar.interval.0.abs().max(bar.interval.1.abs())).fold(0.5, f64::max);
    (-reach, reach)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[(f64, f64, f64)]) -> Panel {
        let bar = |(value, low, high): &(f64, f64, f64)| Bar {
            label: "a <model>".into(),
            value: *value,
            interval: (*low, *high),
        };
        Panel {
            title: "quality".into(),
            subtitle: "50 judgements".into(),
            bars: values.iter().map(bar).collect(),
        }
    }

    #[test]
    fn each_model_has_a_bar_and_an_interval() {
        let panels =
            [panel(&[(0.6, 0.5, 0.7), (0.4, 0.3, 0.5)]), panel(&[(1.2, 0.1, 2.0), (-1.2, -2.0, -0.1)])];
        let svg = draw_svg(&panels);
        // One rectangle is the background.
        assert_eq!((svg.matches("<rect").count(), svg.matches("a &lt;model>").count()), (5, 4));
        assert!(svg.contains("100%</text>") && svg.contains("2.0</text>"), "{svg}");
        let image = draw_png(&panels);
        assert_eq!(image.dimensions(), (720, 320));
        let blue = image.pixels().filter(|pixel| pixel.0 == [86, 140, 190]).count();
        assert!(blue > 5000, "{blue}");
        assert_eq!(draw_png(&[]).dimensions(), (360, 320));
    }
}
