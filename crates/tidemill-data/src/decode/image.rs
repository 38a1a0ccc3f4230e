//! Decoded images, and the bounds on their size.

pub use image::metadata::Orientation;

use crate::decode::format::Format;
use crate::error::RowError;

/// Most encoded bytes of one image.
pub const MAX_BYTES: usize = 256 << 20;

/// Most pixels of one image: 300 MB decoded, above any camera and below any decompression bomb.
pub const MAX_PIXELS: u64 = 100_000_000;

/// An image of 8-bit RGB pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb8 {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Row-major, interleaved: `[height, width, 3]`.
    pub pixels: Vec<u8>,
}

/// Neighbouring columns of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// The columns' pixels.
    pub image: Rgb8,
    /// Columns of the whole image that lie left of them.
    pub left: u32,
    /// Columns of the whole image.
    pub whole: u32,
}

impl Strip {
    /// All columns of an image.
    pub fn whole(image: Rgb8) -> Self {
        Self { left: 0, whole: image.width, image }
    }
}

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Width in pixels of the upright image.
    pub width: u32,
    /// Height in pixels of the upright image.
    pub height: u32,
    /// How the bytes are encoded.
    pub format: Format,
    /// What makes the stored image upright.
    pub orientation: Orientation,
    /// Whether there is a colour profile. Pixels are left as they are.
    pub icc: bool,
}

pub fn check_size(width: u32, height: u32) -> Result<(), RowError> {
    if width == 0 || height == 0 {
        return Err(RowError::Size(format!("{width}x{height} has no pixels")));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(RowError::Size(format!("{width}x{height} is more than {MAX_PIXELS} pixels")));
    }
    Ok(())
}

/// `value / 255` rounded to nearest, for products of two bytes and their sums.
pub fn div_255(value: u32) -> u8 {
    let rounded = value + 128;
    ((rounded + (rounded >> 8)) >> 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_rounds_to_nearest() {
        for value in 0..=255_u32 * 255 {
            assert_eq!(u32::from(div_255(value)), (2 * value + 255) / 510, "{value}");
        }
    }
}
