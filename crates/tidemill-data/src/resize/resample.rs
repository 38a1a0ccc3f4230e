//! Crops and resizes as Pillow does, value for value.

use std::ops::Range;

use crate::decode::{Rgb8, Strip};
use crate::error::RowError;
use crate::resize::filter::Resample;
use crate::resize::geometry::FractionalRect;
use crate::resize::kernel::{self, Kernel};
use crate::resize::passes;

/// Resizes the crop to `size`, width and height. The strip must have the columns that
/// [`required_columns`] returns.
///
/// Two passes, one per axis, with rounding to bytes in between, so their order matters. As in
/// Pillow, the filter at the crop's edge also uses the pixels just outside.
///
/// # Errors
/// If the crop is empty or does not lie inside the image, or columns are missing.
pub fn resize(
    strip: &Strip,
    crop: impl Into<FractionalRect>,
    size: (u32, u32),
    filter: Resample,
) -> Result<Rgb8, RowError> {
    let crop = crop.into();
    check_arguments(strip, crop, size, filter)?;
    let Strip { image, left, full_width } = strip;
    let columns =
        Kernel::new(*full_width, crop.left, crop.right, size.0, filter).without_first(*left as usize);
    let rows = Kernel::new(image.height, crop.top, crop.bottom, size.1, filter);
    if is_horizontal_first((*full_width, image.height), size) {
        let range = rows.input_range();
        let strip = passes::horizontal(image, range.clone(), &columns);
        Ok(passes::vertical(&strip, 0..columns.len(), &rows.without_first(range.start)))
    } else {
        let range = columns.input_range();
        let strip = passes::vertical(image, range.clone(), &rows);
        Ok(passes::horizontal(&strip, 0..rows.len(), &columns.without_first(range.start)))
    }
}

/// The columns that [`resize`] reads of an image that is `full_width` pixels wide.
pub fn required_columns(
    full_width: u32,
    crop: FractionalRect,
    size: (u32, u32),
    filter: Resample,
) -> Range<u32> {
    kernel::input_range(full_width, crop.left, crop.right, size.0, filter)
}

fn check_arguments(
    strip: &Strip,
    crop: FractionalRect,
    size: (u32, u32),
    filter: Resample,
) -> Result<(), RowError> {
    let Strip { image: Rgb8 { width, height, pixels }, left, full_width } = strip;
    let inside = |from: f64, to: f64, end: u32| 0.0 <= from && from < to && to <= f64::from(end);
    let is_valid = inside(crop.left, crop.right, *full_width)
        && inside(crop.top, crop.bottom, *height)
        && pixels.len() == 3 * *width as usize * *height as usize
        && size.0 > 0
        && size.1 > 0;
    let has_columns = || {
        let read = required_columns(*full_width, crop, size, filter);
        *left <= read.start && read.end <= left.saturating_add(*width)
    };
    if is_valid && has_columns() {
        return Ok(());
    }
    let bytes = pixels.len();
    Err(RowError::Size(format!(
        "{crop:?} of columns {left} to {} of a {full_width}x{height} image, {bytes} bytes, cannot be resized to {size:?}",
        left.saturating_add(*width)
    )))
}

/// Pillow runs the horizontal pass first unless the image shrinks much more in height than in width
/// (`src/libImaging/Resample.c`, since 13.0; earlier versions always did).
fn is_horizontal_first(image: (u32, u32), size: (u32, u32)) -> bool {
    let width = i64::from(image.0) - i64::from(size.0);
    let height = i64::from(image.1) - i64::from(size.1);
    height <= 0 || height <= 2 * width
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Scale;
    use crate::resize::geometry::Rect;
    use crate::resize::passes::to_planes;

    #[test]
    fn crop_outside_the_image_is_an_error() {
        let image = Strip::from_image(Rgb8 { width: 8, height: 8, pixels: vec![0; 192] });
        let rect = |x, y, width, height| Rect { x, y, width, height };
        for crop in [rect(0, 4, 8, 8), rect(4, 0, 8, 8), rect(9, 0, 1, 1), rect(2, 2, 0, 3)] {
            for side in [2, 16] {
                assert!(resize(&image, crop, (side, side), Resample::Bicubic).is_err());
            }
        }
        assert!(resize(&image, rect(0, 0, 8, 8), (0, 4), Resample::Bicubic).is_err());
        let short = Strip::from_image(Rgb8 { width: 8, height: 8, pixels: vec![0; 191] });
        assert!(resize(&short, rect(0, 0, 8, 8), (4, 4), Resample::Bicubic).is_err());
    }

    #[test]
    fn required_columns_are_enough() {
        let pixels: Vec<u8> = (0..40 * 9 * 3_u32).map(|i| ((i * i) >> 3) as u8).collect();
        let whole = Strip::from_image(Rgb8 { width: 40, height: 9, pixels });
        let crop = FractionalRect { left: 9.25, top: 1.0, right: 27.5, bottom: 8.0 };
        for filter in [Resample::Area, Resample::Bilinear, Resample::Bicubic, Resample::Lanczos] {
            let read = required_columns(40, crop, (5, 4), filter);
            let resize_strip = |read: &Range<u32>| {
                let columns = 3 * read.start as usize..3 * read.end as usize;
                let rows = whole.image.pixels.chunks(3 * 40).flat_map(|row| row[columns.clone()].to_vec());
                let image = Rgb8 { width: read.len() as u32, height: 9, pixels: rows.collect() };
                resize(&Strip { image, left: read.start, full_width: 40 }, crop, (5, 4), filter)
            };
            assert_eq!(resize_strip(&read).unwrap(), resize(&whole, crop, (5, 4), filter).unwrap());
            assert!(
                resize_strip(&(read.start + 1..read.end)).is_err()
                    && resize_strip(&(read.start..read.end - 1)).is_err()
            );
        }
    }

    #[test]
    fn crop_is_scaled_to_the_decoded_size() {
        let crop = Rect { x: 10, y: 20, width: 30, height: 40 };
        assert_eq!(crop.scale_to((100, 80), (100, 80)), crop.into());
        let half = FractionalRect { left: 5.0, top: 10.0, right: 20.0, bottom: 30.0 };
        assert_eq!(crop.scale_to((100, 80), (50, 40)), half);
    }

    #[test]
    fn crop_at_the_edge_stays_inside_at_any_scale() {
        for (side, wanted) in (256..4096).flat_map(|side| [1, 2, 4].map(|wanted| (side, wanted))) {
            let (to, _) = Scale::smallest_for([(8, wanted)]).scale_size((side, side));
            let area =
                Rect { x: 56, y: 56, width: side - 56, height: side - 56 }.scale_to((side, side), (to, to));
            for (from, end) in [(area.left, area.right), (area.top, area.bottom)] {
                let gap = f64::from(to) - end;
                assert!(0.0 < from && from < end && (0.0..1e-9).contains(&gap), "{side} as {to}: {area:?}");
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
