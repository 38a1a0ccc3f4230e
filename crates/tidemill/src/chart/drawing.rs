//! Draws shapes as SVG and as pixels.

use std::fmt::Write;

use image::{Rgb, RgbImage};
use tidemill_train::image_grid::draw_text;
use tiny_skia::{Color, Paint, PathBuilder, Pixmap, Rect, Stroke, Transform};

/// The colour of text and axes.
pub const INK: [u8; 3] = [70, 70, 70];
/// The colour of lines in the background.
pub const GRID: [u8; 3] = [225, 225, 225];
/// Width of a character of the PNG's font in pixels.
pub const GLYPH: f32 = 8.0;

/// What a chart consists of, in pixels.
pub enum Shape {
    /// A line through points.
    Line {
        /// Its points.
        points: Vec<(f32, f32)>,
        /// Its colour.
        colour: [u8; 3],
        /// Its width.
        width: f32,
    },
    /// A small dot.
    Dot {
        /// Its centre.
        at: (f32, f32),
        /// Its colour.
        colour: [u8; 3],
    },
    /// A filled rectangle.
    Bar {
        /// Its upper left corner.
        at: (f32, f32),
        /// Width and height.
        size: (f32, f32),
        /// Its colour.
        colour: [u8; 3],
    },
    /// A line of text, vertically centred.
    Text {
        /// Its position.
        at: (f32, f32),
        /// The text.
        text: String,
        /// Which part of it is at the position.
        anchor: Anchor,
    },
}

/// Which part of a text is at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The left end.
    Start,
    /// The middle.
    Middle,
    /// The right end.
    End,
}

/// Shapes as an SVG file.
pub fn to_svg(shapes: &[Shape], (width, height): (u32, u32)) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for shape in shapes {
        // Writing to a string cannot fail.
        let _ = match shape {
            Shape::Line { points, colour, width } => {
                let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let (points, colour) = (points.join(" "), to_rgb(*colour));
                writeln!(
                    svg,
                    "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
                )
            }
            Shape::Dot { at: (x, y), colour } => {
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{}\"/>", to_rgb(*colour))
            }
            Shape::Bar { at: (x, y), size: (width, height), colour } => writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
                to_rgb(*colour)
            ),
            Shape::Text { at: (x, y), text, anchor } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                let (y, ink) = (y + 4.0, to_rgb(INK));
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{ink}\">{text}</text>"
                )
            }
        };
    }
    svg + "</svg>\n"
}

fn to_rgb([r, g, b]: [u8; 3]) -> String {
    format!("rgb({r},{g},{b})")
}

/// Shapes as pixels.
pub fn to_pixels(shapes: &[Shape], (width, height): (u32, u32)) -> RgbImage {
    let blank = || RgbImage::from_pixel(width, height, Rgb([255; 3]));
    let Some(mut pixmap) = Pixmap::new(width, height) else { return blank() };
    pixmap.fill(Color::WHITE);
    for shape in shapes {
        match shape {
            Shape::Line { points, colour, width } => stroke(&mut pixmap, points, *colour, *width),
            Shape::Dot { at: (x, y), colour } => {
                let diamond = [(-2.0, 0.0), (0.0, -2.0), (2.0, 0.0), (0.0, 2.0), (-2.0, 0.0)];
                let points: Vec<_> = diamond.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
                stroke(&mut pixmap, &points, *colour, 2.0);
            }
            Shape::Bar { at: (x, y), size: (width, height), colour } => {
                if let Some(rectangle) = Rect::from_xywh(*x, *y, *width, *height) {
                    pixmap.fill_rect(rectangle, &paint(*colour), Transform::identity(), None);
                }
            }
            Shape::Text { .. } => (),
        }
    }
    let pixels = pixmap.data().chunks_exact(4).flat_map(|rgba| [rgba[0], rgba[1], rgba[2]]).collect();
    let mut image = RgbImage::from_raw(width, height, pixels).unwrap_or_else(blank);
    for shape in shapes {
        if let Shape::Text { at: (x, y), text, anchor } = shape {
            let width = GLYPH * text.chars().count() as f32;
            let left = match anchor {
                Anchor::Start => *x,
                Anchor::Middle => x - width / 2.0,
                Anchor::End => x - width,
            };
            draw_text(&mut image, text, left.max(0.0) as u32, (y - GLYPH / 2.0).max(0.0) as u32);
        }
    }
    image
}

fn stroke(pixmap: &mut Pixmap, points: &[(f32, f32)], colour: [u8; 3], width: f32) {
    let mut path = PathBuilder::new();
    for (i, (x, y)) in points.iter().enumerate() {
        if i == 0 { path.move_to(*x, *y) } else { path.line_to(*x, *y) }
    }
    if let Some(path) = path.finish() {
        let stroke = Stroke { width, ..Stroke::default() };
        pixmap.stroke_path(&path, &paint(colour), &stroke, Transform::identity(), None);
    }
}

fn paint([r, g, b]: [u8; 3]) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(r, g, b, 255);
    paint
}
