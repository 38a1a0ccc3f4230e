//! RGB images: owned by the drawing code, borrowed by the checker.

use crate::error::{Error, Result};

/// An RGB image: row-major, 3 bytes per pixel, no padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    /// Width, in pixels.
    pub width: usize,
    /// Height, in pixels.
    pub height: usize,
    /// `3 * width * height` bytes.
    pub rgb: Vec<u8>,
}

impl RgbImage {
    /// Borrows the pixels.
    pub fn view(&self) -> RgbView<'_> {
        RgbView { width: self.width, height: self.height, rgb: &self.rgb }
    }
}

/// A borrowed RGB image: row-major, 3 bytes per pixel, no padding.
#[derive(Clone, Copy, Debug)]
pub struct RgbView<'a> {
    width: usize,
    height: usize,
    rgb: &'a [u8],
}

impl<'a> RgbView<'a> {
    /// Interprets `rgb` as an image.
    ///
    /// # Errors
    /// [`Error::Pixels`] unless `rgb` has exactly `3 * width * height` bytes.
    pub fn new(width: usize, height: usize, rgb: &'a [u8]) -> Result<Self> {
        if rgb.len() != 3 * width * height {
            return Err(Error::Pixels { width, height, bytes: rgb.len() });
        }
        Ok(Self { width, height, rgb })
    }

    /// The width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The pixels in row-major order.
    pub fn pixels(&self) -> impl ExactSizeIterator<Item = [u8; 3]> + '_ {
        self.rgb.chunks_exact(3).map(|p| [p[0], p[1], p[2]])
    }
}
