//! Outlines of the shapes around their centroid. Drawing and checking share them.

use std::f32::consts::{FRAC_PI_2, PI, TAU};
use tiny_skia::{Path, PathBuilder};

use crate::drawing::vocabulary::Shape;

// Dimensions of the shapes for an object of radius 1, chosen so that all shapes look about equally
// large.

/// Radii of the star's tips and notches.
const STAR: (f32, f32) = (1.2, 0.55);
/// Radius of the triangle's corners.
const TRIANGLE: f32 = 1.2;
/// Half of the square's side.
const SQUARE: f32 = 0.9;
/// Half of the length and half of the width of the cross's bars.
const CROSS: (f32, f32) = (1.05, 0.38);

/// The corners of a shape of radius 1 relative to its centre, with x to the right and y down. A
/// circle has none.
fn corners(shape: Shape) -> Vec<(f32, f32)> {
    match shape {
        Shape::Circle => Vec::new(),
        Shape::Square => vec![(-SQUARE, -SQUARE), (SQUARE, -SQUARE), (SQUARE, SQUARE), (-SQUARE, SQUARE)],
        Shape::Triangle => (0..3).map(|i| from_polar(TRIANGLE, i as f32 * TAU / 3.0 - FRAC_PI_2)).collect(),
        Shape::Star => (0..10)
            .map(|i| from_polar(if i % 2 == 0 { STAR.0 } else { STAR.1 }, i as f32 * TAU / 10.0 - FRAC_PI_2))
            .collect(),
        Shape::Cross => {
            let (l, w) = CROSS;
            let arm = [(-w, -l), (w, -l), (w, -w)];
            (0..4).flat_map(|quarter| arm.map(|p| rotate(p, quarter as f32 * FRAC_PI_2))).collect()
        }
    }
}

/// The area of a shape of radius 1 (shoelace formula).
pub(crate) fn unit_area(shape: Shape) -> f32 {
    let points = corners(shape);
    if points.is_empty() {
        return PI;
    }
    let next = points.iter().cycle().skip(1);
    points.iter().zip(next).map(|(a, b)| a.0 * b.1 - b.0 * a.1).sum::<f32>().abs() / 2.0
}

/// Builds the outline of a shape at `center`, in pixels. `None` if the radius is zero or not
/// finite.
pub(crate) fn build_outline(shape: Shape, center: (f32, f32), radius: f32, angle: f32) -> Option<Path> {
    let points = corners(shape);
    if points.is_empty() {
        return PathBuilder::from_circle(center.0, center.1, radius);
    }
    let mut path = PathBuilder::new();
    for (i, point) in points.into_iter().enumerate() {
        let (x, y) = rotate(point, angle);
        let (x, y) = (center.0 + radius * x, center.1 + radius * y);
        if i == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
    }
    path.close();
    path.finish()
}

fn from_polar(radius: f32, angle: f32) -> (f32, f32) {
    (radius * angle.cos(), radius * angle.sin())
}

fn rotate((x, y): (f32, f32), angle: f32) -> (f32, f32) {
    let (sin, cos) = angle.sin_cos();
    (x * cos - y * sin, x * sin + y * cos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_match_closed_formulas() {
        assert!((unit_area(Shape::Square) - 4.0 * SQUARE * SQUARE).abs() < 1e-5);
        assert!((unit_area(Shape::Triangle) - 0.75 * 3f32.sqrt() * TRIANGLE * TRIANGLE).abs() < 1e-5);
        assert!((unit_area(Shape::Star) - 5.0 * STAR.0 * STAR.1 * (PI / 5.0).sin()).abs() < 1e-5);
        assert!((unit_area(Shape::Cross) - (8.0 * CROSS.0 * CROSS.1 - 4.0 * CROSS.1 * CROSS.1)).abs() < 1e-5);
    }
}
