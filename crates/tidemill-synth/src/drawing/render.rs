//! Draws scenes as anti-aliased pixels. The object always lies in the image's centre square, so the
//! caption stays correct after a centre crop.

use tiny_skia::{
    Color, FillRule, GradientStop, LinearGradient, Paint, Pixmap, Point, Rect, Shader, SpreadMode, Transform,
};

use crate::drawing::outline::build_outline;
use crate::drawing::scene::Scene;
use crate::error::{Error, Result};
use crate::image::RgbImage;

/// Draws `scene` as an image of `width` x `height` pixels.
///
/// # Errors
/// [`Error::Size`] if a side is too small or too large.
pub fn draw_scene(scene: &Scene, width: u32, height: u32) -> Result<RgbImage> {
    let bad_size = || Error::Size { width, height };
    let mut pixmap = Pixmap::new(width, height).ok_or_else(bad_size)?;
    let (w, h) = (width as f32, height as f32);

    let canvas = Rect::from_xywh(0.0, 0.0, w, h).ok_or_else(bad_size)?;
    pixmap.fill_rect(canvas, &paint_background(scene, w, h), Transform::identity(), None);

    let side = w.min(h);
    let center = ((w - side) / 2.0 + scene.center.0 * side, (h - side) / 2.0 + scene.center.1 * side);
    let path = build_outline(scene.shape, center, scene.radius * side, scene.angle).ok_or_else(bad_size)?;
    let mut paint = Paint::default();
    paint.set_color(to_color(scene.rgb));
    pixmap.fill_path(&path, &paint, FillRule::Winding, Transform::identity(), None);

    let rgb = pixmap.pixels().iter().flat_map(|p| [p.red(), p.green(), p.blue()]).collect();
    Ok(RgbImage { width: width as usize, height: height as usize, rgb })
}

/// A linear gradient through the image's centre, as long as its diagonal.
fn paint_background(scene: &Scene, w: f32, h: f32) -> Paint<'static> {
    // Not `hypot`: libm's `hypotf` would require a newer glibc in wheels.
    let half_diagonal = (w * w + h * h).sqrt() / 2.0;
    let (dy, dx) = scene.background_angle.sin_cos();
    let end =
        |sign: f32| Point::from_xy(w / 2.0 + sign * dx * half_diagonal, h / 2.0 + sign * dy * half_diagonal);
    let [first, last] = scene.background.map(to_color);
    let stops = vec![GradientStop::new(0.0, first), GradientStop::new(1.0, last)];
    let shader = LinearGradient::new(end(-1.0), end(1.0), stops, SpreadMode::Pad, Transform::identity())
        .unwrap_or(Shader::SolidColor(first));
    Paint { shader, anti_alias: false, ..Paint::default() }
}

fn to_color([r, g, b]: [u8; 3]) -> Color {
    Color::from_rgba8(r, g, b, 255)
}
