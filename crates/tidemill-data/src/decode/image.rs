//! Decoded images and what their headers say.

pub use image::metadata::Orientation;

use crate::decode::format::Format;

/// An image of 8-bit RGB pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb8 {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Row-major, interleaved: `[height, width, 3]`.
    pub pixels: Vec<u8>,
}

/// Consecutive columns of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// Pixels of the columns.
    pub image: Rgb8,
    /// Columns of the full image that lie left of these.
    pub left: u32,
    /// Width of the full image.
    pub full_width: u32,
}

impl Strip {
    /// A strip of all columns of an image.
    pub fn from_image(image: Rgb8) -> Self {
        Self { left: 0, full_width: image.width, image }
    }
}

/// What an image's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageInfo {
    /// Width in pixels of the upright image.
    pub width: u32,
    /// Height in pixels of the upright image.
    pub height: u32,
    /// Format of the encoded bytes.
    pub format: Format,
    /// The transformation that makes the stored image upright.
    pub orientation: Orientation,
    /// True if there is a colour profile.
    pub icc: bool,
}

/// `value / 255`, rounded to nearest, for products of two bytes and their sums.
pub fn div_255(value: u32) -> u8 {
    let rounded = value + 128;
    ((rounded + (rounded >> 8)) >> 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn div_255_rounds_to_nearest() {
        for value in 0..=255_u32 * 255 {
            assert_eq!(u32::from(div_255(value)), (2 * value + 255) / 510, "{value}");
        }
    }
}
