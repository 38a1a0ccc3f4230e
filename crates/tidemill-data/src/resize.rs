//! A part of an image at a given size, as Pillow's `image.resize(size, Image.BICUBIC, box=crop)` gives it.

use fast_image_resize::images::TypedImage;
use fast_image_resize::pixels::U16x3;
use fast_image_resize::{FilterType, ImageView, ResizeAlg, ResizeOptions, Resizer};

use crate::decode::Rgb8;
use crate::error::RowError;
use crate::prepare::Resample;

/// A rectangle in the original's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rect {
    /// Left edge.
    pub x: u32,
    /// Upper edge.
    pub y: u32,
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

/// Resizes the crop to `size`, width and height.
///
/// Two passes, one per axis, with rounding to bytes in between, so that their order shows. As in Pillow, the filter
/// at the crop's edge also sees the pixels just outside. The passes run on 16-bit channels that hold bytes: the
/// filter's coefficients for 8-bit ones have too few bits to round as Pillow does.
///
/// # Errors
/// If the crop does not lie inside the image, or the image's buffer has the wrong size.
pub fn resize(image: &Rgb8, crop: Rect, size: (u32, u32), filter: Resample) -> Result<Rgb8, RowError> {
    let (filter, radius) = match filter {
        Resample::Bicubic => (FilterType::CatmullRom, 2.0),
    };
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).use_alpha(false);
    let axes = if horizontal_first(image, size) {
        [Axis::Horizontal, Axis::Vertical]
    } else {
        [Axis::Vertical, Axis::Horizontal]
    };
    let reach = |from: u32, to: u32| (radius * (f64::from(from) / f64::from(to)).max(1.0)).ceil() as u32 + 1;
    let reach = (reach(crop.width, size.0), reach(crop.height, size.1));
    let (mut pixels, mut rect) = excerpt(image, crop, reach)?;
    let mut resizer = Resizer::new();
    for axis in axes {
        (pixels, rect) = pass(&mut resizer, &pixels, rect, axis, size, options)?;
    }
    let bytes = pixels.pixels().iter().flat_map(|pixel| pixel.0.map(|channel| channel as u8));
    Ok(Rgb8 { width: size.0, height: size.1, pixels: bytes.collect() })
}

/// Bytes in 16-bit channels.
type Wide = TypedImage<'static, U16x3>;

#[derive(Clone, Copy)]
enum Axis {
    Horizontal,
    Vertical,
}

/// Pillow runs the horizontal pass first unless the image shrinks much more in height than in width
/// (`src/libImaging/Resample.c`, since 13.0; before, it always did).
fn horizontal_first(image: &Rgb8, size: (u32, u32)) -> bool {
    let width = i64::from(image.width) - i64::from(size.0);
    let height = i64::from(image.height) - i64::from(size.1);
    height <= 0 || height <= 2 * width
}

/// The crop with a margin of what the filter reaches, as far as there is an image, and where the crop lies in it.
fn excerpt(image: &Rgb8, crop: Rect, reach: (u32, u32)) -> Result<(Wide, Rect), RowError> {
    let margin = |start: u32, length: u32, end: u32, reach: u32| {
        let from = start.saturating_sub(reach);
        (from, start.saturating_add(length).saturating_add(reach).min(end).saturating_sub(from))
    };
    let (left, width) = margin(crop.x, crop.width, image.width, reach.0);
    let (top, height) = margin(crop.y, crop.height, image.height, reach.1);
    let rows = image.pixels.chunks_exact(3 * image.width.max(1) as usize);
    let rows = rows.skip(top as usize).take(height as usize);
    let columns = |row| as_pixels(row).iter().skip(left as usize).take(width as usize);
    let pixels = rows.flat_map(columns).map(|&pixel| U16x3::new(pixel.map(u16::from))).collect();
    let excerpt = Wide::from_pixels(width, height, pixels).map_err(failure)?;
    Ok((excerpt, Rect { x: crop.x - left, y: crop.y - top, ..crop }))
}

fn as_pixels(bytes: &[u8]) -> &[[u8; 3]] {
    bytes.as_chunks().0
}

/// Resizes one axis of the rectangle and keeps the other axis of the image whole.
fn pass(
    resizer: &mut Resizer,
    from: &Wide,
    rect: Rect,
    axis: Axis,
    size: (u32, u32),
    options: ResizeOptions,
) -> Result<(Wide, Rect), RowError> {
    let (used, mut to, rect) = match axis {
        Axis::Horizontal => (
            Rect { y: 0, height: from.height(), ..rect },
            Wide::new(size.0, from.height()),
            Rect { x: 0, width: size.0, ..rect },
        ),
        Axis::Vertical => (
            Rect { x: 0, width: from.width(), ..rect },
            Wide::new(from.width(), size.1),
            Rect { y: 0, height: size.1, ..rect },
        ),
    };
    let options = options.crop(used.x.into(), used.y.into(), used.width.into(), used.height.into());
    resizer.resize_typed(from, &mut to, &options).map_err(failure)?;
    for pixel in to.pixels_mut() {
        pixel.0 = pixel.0.map(|channel| channel.min(255));
    }
    Ok((to, rect))
}

fn failure(error: impl std::fmt::Display) -> RowError {
    RowError::Damaged(format!("cannot be resized: {error}"))
}

/// Writes interleaved pixels as planes: `[3, height, width]`. `planes` holds as many bytes as the image has.
pub fn to_planes(image: &Rgb8, planes: &mut [u8]) {
    let (red, rest) = planes.split_at_mut(image.pixels.len() / 3);
    let (green, blue) = rest.split_at_mut(red.len());
    let targets = red.iter_mut().zip(green).zip(blue);
    for (&[r, g, b], ((red, green), blue)) in as_pixels(&image.pixels).iter().zip(targets) {
        (*red, *green, *blue) = (r, g, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crop_outside_the_image_is_an_error() {
        let image = Rgb8 { width: 8, height: 8, pixels: vec![0; 192] };
        for crop in [Rect { x: 0, y: 4, width: 8, height: 8 }, Rect { x: 4, y: 0, width: 8, height: 8 }] {
            for size in [(2, 2), (2, 16), (16, 16)] {
                assert!(resize(&image, crop, size, Resample::Bicubic).is_err());
            }
        }
    }

    #[test]
    fn planes_hold_one_colour_each() {
        let image = Rgb8 { width: 2, height: 1, pixels: vec![1, 2, 3, 4, 5, 6] };
        let mut planes = [0; 6];
        to_planes(&image, &mut planes);
        assert_eq!(planes, [1, 4, 2, 5, 3, 6]);
    }
}
