//! A part of an image at a given size, as Pillow's `image.resize(size, filter, box=crop)`
//! gives it: value for value, for the arithmetic is the same.

mod kernel;
mod pass;

use self::kernel::Kernel;
pub use self::pass::to_planes;
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

/// A rectangle with edges between pixels: a crop of the original, in the pixels of a smaller decoding of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl From<Rect> for Area {
    fn from(rect: Rect) -> Self {
        let Rect { x, y, width, height } = rect;
        let [left, top, width, height] = [x, y, width, height].map(f64::from);
        Self { left, top, right: left + width, bottom: top + height }
    }
}

impl Rect {
    /// This rectangle of an image of size `from` in the same image decoded to size `to`.
    pub fn scaled(self, from: (u32, u32), to: (u32, u32)) -> Area {
        let Area { left, top, right, bottom } = self.into();
        let scale = |to: u32, from: u32| f64::from(to) / f64::from(from.max(1));
        let (x, y) = (scale(to.0, from.0), scale(to.1, from.1));
        Area { left: left * x, top: top * y, right: right * x, bottom: bottom * y }
    }
}

/// Resizes the crop to `size`, width and height.
///
/// Two passes, one per axis, with rounding to bytes in between, so that their order shows. As in Pillow, the filter
/// at the crop's edge also sees the pixels just outside.
///
/// # Errors
/// If the crop is empty or does not lie inside the image, or the image's buffer has the wrong size.
pub fn resize(
    image: &Rgb8,
    crop: impl Into<Area>,
    size: (u32, u32),
    filter: Resample,
) -> Result<Rgb8, RowError> {
    let crop = crop.into();
    check(image, crop, size)?;
    let columns = Kernel::new(image.width, crop.left, crop.right, size.0, filter);
    let rows = Kernel::new(image.height, crop.top, crop.bottom, size.1, filter);
    if horizontal_first(image, size) {
        let reach = rows.reach();
        let strip = pass::horizontal(image, reach.clone(), &columns);
        Ok(pass::vertical(&strip, 0..columns.len(), &rows.from(reach.start)))
    } else {
        let reach = columns.reach();
        let strip = pass::vertical(image, reach.clone(), &rows);
        Ok(pass::horizontal(&strip, 0..rows.len(), &columns.from(reach.start)))
    }
}

fn check(image: &Rgb8, crop: Area, size: (u32, u32)) -> Result<(), RowError> {
    let inside = |from: f64, to: f64, end: u32| 0.0 <= from && from < to && to <= f64::from(end);
    let pixels = image.width as usize * image.height as usize;
    let possible = inside(crop.left, crop.right, image.width)
        && inside(crop.top, crop.bottom, image.height)
        && image.pixels.len() == 3 * pixels
        && size.0 > 0
        && size.1 > 0;
    if !possible {
        let Rgb8 { width, height, pixels } = image;
        let bytes = pixels.len();
        return Err(RowError::Size(format!(
            "{crop:?} of a {width}x{height} image of {bytes} bytes cannot be resized to {size:?}"
        )));
    }
    Ok(())
}

/// Pillow runs the horizontal pass first unless the image shrinks much more in height than in width
/// (`src/libImaging/Resample.c`, since 13.0; before, it always did).
fn horizontal_first(image: &Rgb8, size: (u32, u32)) -> bool {
    let width = i64::from(image.width) - i64::from(size.0);
    let height = i64::from(image.height) - i64::from(size.1);
    height <= 0 || height <= 2 * width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crop_outside_the_image_is_an_error() {
        let image = Rgb8 { width: 8, height: 8, pixels: vec![0; 192] };
        let rect = |x, y, width, height| Rect { x, y, width, height };
        for crop in [rect(0, 4, 8, 8), rect(4, 0, 8, 8), rect(9, 0, 1, 1), rect(2, 2, 0, 3)] {
            for side in [2, 16] {
                assert!(resize(&image, crop, (side, side), Resample::Bicubic).is_err());
            }
        }
        assert!(resize(&image, rect(0, 0, 8, 8), (0, 4), Resample::Bicubic).is_err());
        let short = Rgb8 { pixels: vec![0; 191], ..image };
        assert!(resize(&short, rect(0, 0, 8, 8), (4, 4), Resample::Bicubic).is_err());
    }

    #[test]
    fn a_crop_follows_the_size_of_the_decoding() {
        let crop = Rect { x: 10, y: 20, width: 30, height: 40 };
        assert_eq!(crop.scaled((100, 80), (100, 80)), crop.into());
        let half = Area { left: 5.0, top: 10.0, right: 20.0, bottom: 30.0 };
        assert_eq!(crop.scaled((100, 80), (50, 40)), half);
    }

    #[test]
    fn planes_hold_one_colour_each() {
        let image = Rgb8 { width: 2, height: 1, pixels: vec![1, 2, 3, 4, 5, 6] };
        let mut planes = [0; 6];
        to_planes(&image, &mut planes);
        assert_eq!(planes, [1, 4, 2, 5, 3, 6]);
    }
}
