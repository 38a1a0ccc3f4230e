//! From a scene to anti-aliased pixels. The object lies in the picture's centre square whatever the picture's sides,
//! so a caption stays true after a centre crop.

use tiny_skia::{
    Color, FillRule, GradientStop, LinearGradient, Paint, Pixmap, Point, Rect, Shader, SpreadMode, Transform,
};

use crate::error::{Error, Result};
use crate::geometry::outline;
use crate::picture::Picture;
use crate::scene::Scene;

/// Draws `scene` as a picture of `width` x `height` pixels.
///
/// # Errors
/// [`Error::Size`] for sides that cannot be drawn.
pub fn draw(scene: &Scene, width: u32, height: u32) -> Result<Picture> {
    let bad_size = || Error::Size { width, height };
    let mut pixmap = Pixmap::new(width, height).ok_or_else(bad_size)?;
    let (w, h) = (width as f32, height as f32);

    let everything = Rect::from_xywh(0.0, 0.0, w, h).ok_or_else(bad_size)?;
    pixmap.fill_rect(everything, &background(scene, w, h), Transform::identity(), None);

    let side = w.min(h);
    let center = ((w - side) / 2.0 + scene.center.0 * side, (h - side) / 2.0 + scene.center.1 * side);
    let path = outline(scene.shape, center, scene.radius * side, scene.angle).ok_or_else(bad_size)?;
    let mut paint = Paint::default();
    paint.set_color(color(scene.rgb));
    pixmap.fill_path(&path, &paint, FillRule::Winding, Transform::identity(), None);

    let rgb = pixmap.pixels().iter().flat_map(|p| [p.red(), p.green(), p.blue()]).collect();
    Ok(Picture { width: width as usize, height: height as usize, rgb })
}

/// A linear fade across the picture's diagonal length, through its centre.
fn background(scene: &Scene, w: f32, h: f32) -> Paint<'static> {
    // libm's `hypotf` would ask wheels for a newer glibc.
    let reach = (w * w + h * h).sqrt() / 2.0;
    let (dy, dx) = scene.background_angle.sin_cos();
    let end = |sign: f32| Point::from_xy(w / 2.0 + sign * dx * reach, h / 2.0 + sign * dy * reach);
    let [first, last] = scene.background.map(color);
    let stops = vec![GradientStop::new(0.0, first), GradientStop::new(1.0, last)];
    let shader = LinearGradient::new(end(-1.0), end(1.0), stops, SpreadMode::Pad, Transform::identity())
        .unwrap_or(Shader::SolidColor(first));
    Paint { shader, anti_alias: false, ..Paint::default() }
}

fn color([r, g, b]: [u8; 3]) -> Color {
    Color::from_rgba8(r, g, b, 255)
}
