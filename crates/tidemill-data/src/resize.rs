//! Which square of an image is used, and that square at a given resolution, as Pillow's
//! `image.resize((R, R), Image.BICUBIC, box=crop)` gives it.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::config::{Crop, Resample};
use crate::decode::Rgb8;
use crate::error::RowError;

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

/// The part of an image of this size that is used. Odd margins leave the extra pixel right or below.
pub fn crop(kind: Crop, width: u32, height: u32) -> Rect {
    match kind {
        Crop::Center => {
            let side = width.min(height);
            Rect { x: (width - side) / 2, y: (height - side) / 2, width: side, height: side }
        }
    }
}

/// Resizes the crop to `side` x `side`.
///
/// Pillow runs the horizontal pass first and rounds to bytes between the passes; one call of fast_image_resize runs
/// the vertical one first. Two calls, one axis each, agree with Pillow. As there, the filter at the crop's edge also
/// sees the pixels just outside.
///
/// # Errors
/// If the crop lies outside the image, or the image's buffer has the wrong size.
pub fn resize(image: &Rgb8, crop: Rect, side: u32, filter: Resample) -> Result<Rgb8, RowError> {
    let (filter, radius) = match filter {
        Resample::Bicubic => (FilterType::CatmullRom, 2.0),
    };
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).use_alpha(false);
    let row_bytes = 3 * image.width as usize;

    // Only the rows that the vertical pass will look at.
    let reach = (radius * (f64::from(crop.height) / f64::from(side)).max(1.0)).ceil() as u32 + 1;
    let top = crop.y.saturating_sub(reach);
    let bottom = (crop.y + crop.height).saturating_add(reach).min(image.height);
    let rows = image.pixels.get(top as usize * row_bytes..bottom as usize * row_bytes).unwrap_or_default();
    let rows = ImageRef::new(image.width, bottom - top, rows, PixelType::U8x3).map_err(failure)?;

    let mut resizer = Resizer::new();
    let mut narrow = Image::new(side, bottom - top, PixelType::U8x3);
    let columns = options.crop(crop.x.into(), 0.0, crop.width.into(), (bottom - top).into());
    resizer.resize(&rows, &mut narrow, &columns).map_err(failure)?;

    let mut square = Image::new(side, side, PixelType::U8x3);
    let rows = options.crop(0.0, (crop.y - top).into(), side.into(), crop.height.into());
    resizer.resize(&narrow, &mut square, &rows).map_err(failure)?;
    Ok(Rgb8 { width: side, height: side, pixels: square.into_vec() })
}

fn failure(error: impl std::fmt::Display) -> RowError {
    RowError::Damaged(format!("cannot be resized: {error}"))
}

/// Writes interleaved pixels as planes: `[3, height, width]`. `planes` holds as many bytes as the image has.
pub fn to_planes(image: &Rgb8, planes: &mut [u8]) {
    let (red, rest) = planes.split_at_mut(image.pixels.len() / 3);
    let (green, blue) = rest.split_at_mut(red.len());
    let targets = red.iter_mut().zip(green).zip(blue);
    for (&[r, g, b], ((red, green), blue)) in image.pixels.as_chunks::<3>().0.iter().zip(targets) {
        (*red, *green, *blue) = (r, g, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crop_is_the_middle_square() {
        let cases = [
            ((500, 375), (62, 0, 375)),
            ((375, 500), (0, 62, 375)),
            ((64, 64), (0, 0, 64)),
            ((5, 2), (1, 0, 2)),
            ((1, 9), (0, 4, 1)),
        ];
        for ((width, height), (x, y, side)) in cases {
            assert_eq!(crop(Crop::Center, width, height), Rect { x, y, width: side, height: side });
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
